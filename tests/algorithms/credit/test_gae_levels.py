"""GAE over turns, and over turns and tokens: the cards' numbers, a loop over dictionaries, reductions, errata."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.algorithms.credit.gae_columns import F64, column, credit, one, target
from tests.strategies import forests

from gxpo.algorithms.credit.gae import Gae, bilevel_gae, ends, gae
from gxpo.base.errors import ConfigError
from gxpo.forest.forest import Forest

Grow = Callable[..., Forest]


def turns(*actions: tuple[int, float], **fields) -> Forest:
    """One trajectory: (tokens of the action, its step reward)."""
    record = {
        "schema": "gxpo.rollouts/1",
        "group": "g",
        "id": "t",
        "prompt": [1],
        "turns": [{"observation": [2], "action": [3] * n, "logprob": [-1.0] * n, "reward": r} for n, r in actions],
        "reward": sum(r for _, r in actions),
        **fields,
    }
    return Forest.from_records([record])


def test_card_over_turns() -> None:
    """R = [0, .2, 1], V = [.4, .5, .6], g = .9, l = .8: delta = [.05, .24, .4]; .24 + .72*.4, .05 + .72*.528."""
    actual = gae(column(0, 0.2, 1), column(0.4, 0.5, 0.6), one(3), one(3) == 0, discount=0.9, lam=0.8)
    assert actual.tolist() == pytest.approx([0.430160, 0.528000, 0.400000], abs=1e-12)
    forest, value = turns((2, 0.0), (1, 0.2), (3, 1.0)), column(0.4, 9, 0.5, 0.6, 9, 9)  # only first tokens are read
    fields = {"level": "turn", "discount": 0.9, "lam": 0.8}
    expected = [0.430160] * 2 + [0.528] + [0.4] * 3
    assert credit(forest, value, **fields).tolist() == pytest.approx(expected, abs=1e-12)
    assert credit(forest, value, level="turn", turn_discount=0.9, lam=0.8).tolist() == pytest.approx(
        expected, abs=1e-12
    )
    targets = [0.83016] * 2 + [1.028] + [1.0] * 3  # A + V of the turn
    assert target(forest, value, **fields).tolist() == pytest.approx(targets, abs=1e-12)
    nan = float("nan")
    expected = [0.83016, nan, 1.028, 1.0, nan, nan]
    assert target(forest, value, target_at="anchor", **fields).tolist() == pytest.approx(expected, nan_ok=True)


def test_the_value_of_a_turn_at_its_last_token() -> None:
    """The same numbers where they are read at last tokens."""
    forest, value = turns((2, 0.0), (1, 0.2), (3, 1.0)), column(9, 0.4, 0.5, 9, 9, 0.6)
    fields = {"level": "turn", "discount": 0.9, "lam": 0.8, "anchor": "last"}
    assert credit(forest, value, **fields).tolist() == pytest.approx([0.430160] * 2 + [0.528] + [0.4] * 3, abs=1e-12)
    actual, nan = target(forest, value, target_at="anchor", **fields), float("nan")
    assert actual.tolist() == pytest.approx([nan, 0.83016, 1.028, nan, nan, 1.0], nan_ok=True)


def test_card_bi_level() -> None:
    """The masked example, rewards .3, -.2, 1 at turn ends, g = 1, l = .95, gH = .9, values at last tokens:
    AH_3 = .15, AH_2 = -.2 + .9*.85 - .7 + .855*.15 = -.00675, AH_1 = .3 + .9*.7 - .4 + .855*AH_2 = .524229;
    token 2 of turn 1: .4 - .25 + .95*.524229 = .648017."""
    forest = turns((3, 0.3), (2, -0.2), (1, 1.0))
    value = column(0.10, 0.25, 0.40, 0.55, 0.70, 0.85)
    expected = [0.765616, 0.648017, 0.524229, 0.143587, -0.006750, 0.150000]
    actual = credit(forest, value, level="both", lam=0.95, turn_discount=0.9, anchor="last")
    assert actual.tolist() == pytest.approx(expected, abs=1e-6)
    actual = target(forest, value, level="both", lam=0.95, turn_discount=0.9, anchor="last") - value
    assert actual.tolist() == pytest.approx(expected, abs=1e-6)


def test_ragens_own_example() -> None:
    """Two turns of five tokens that pay 1 each, V = .1 ... 1.0, g = l = 1, gH = .95: 1 + .95 - V, then 1 - V."""
    forest, value = turns((5, 1.0), (5, 1.0)), torch.arange(1, 11, dtype=F64) / 10
    expected = [1.85, 1.75, 1.65, 1.55, 1.45, 0.4, 0.3, 0.2, 0.1, 0.0]
    for anchor in ("first", "last"):
        actual = credit(forest, value, level="both", turn_discount=0.95, anchor=anchor)
        assert actual.tolist() == pytest.approx(expected, abs=1e-12)


def test_card_action_decomposition() -> None:
    """Actions (r 0, V .2 .3), (r 1, V .5 .6), g = .9, l = .8: last token 1 - .6, then .6 - .5 + .8*.4 = .42;
    0 + .9*.5 - .3 + .72*.42 = .4524, then .3 - .2 + .8*.4524 = .46192. Discounted inside too (NTPO): .328, .38616..."""
    forest, value = turns((2, 0.0), (2, 1.0)), column(0.2, 0.3, 0.5, 0.6)
    actual = credit(forest, value, turn_discount=0.9, lam=0.8)
    assert actual.tolist() == pytest.approx([0.46192, 0.4524, 0.42, 0.4], abs=1e-12)
    inside = credit(forest, value, discount=0.9, lam=0.8)
    assert inside.tolist() == pytest.approx([0.3480352, 0.38616, 0.328, 0.4], abs=1e-12)


def test_whitened_over_turns(grow: Grow) -> None:
    """A = [1, 0, 0, 2 (not compared)] by turn, whatever their lengths: mean 1/3, std of three .577350."""
    rows = [("a", 1.0, [4]), ("a", 0.0, [1]), ("a", 0.0, [2]), ("a", 2.0, [1], {"compared": False})]
    actual = credit(grow(rows), torch.zeros(8, dtype=F64), level="turn", whiten="turn")
    expected = [1.154701] * 4 + [-0.577350] * 3 + [2.886751]
    assert actual.tolist() == pytest.approx(expected, abs=1e-6)
    by_token = credit(grow(rows), torch.zeros(8, dtype=F64), level="turn", whiten="token")
    assert by_token[:7].sum() == pytest.approx(0, abs=1e-12) and float(by_token[0]) != pytest.approx(float(actual[0]))
    equal = credit(grow([("a", 1.0, [2]), ("b", 1.0, [1])]), torch.zeros(3, dtype=F64), level="turn", whiten="turn")
    assert equal.tolist() == [0.0] * 3


def test_turns_of_others_and_empty_ones_are_passed_over() -> None:
    """Turns 1 and 2 hold nothing that is trained: what they pay goes to turn 0, V_3 follows it."""
    pieces = [([3, 3], True, 1.0), ([4], False, 2.0), ([], True, 4.0), ([5], True, 8.0)]
    record = {
        "schema": "gxpo.rollouts/1",
        "group": "g",
        "id": "t",
        "prompt": [1],
        "turns": [{"observation": [2], "action": a, "trainable": t, "reward": r} for a, t, r in pieces],
        "reward": 15.0,
    }
    forest, value = Forest.from_records([record]), column(0.5, 9, float("nan"), 0.25)
    actual = credit(forest, value, level="turn", lam=0.0)
    assert actual.tolist() == pytest.approx([7 + 0.25 - 0.5] * 2 + [0.0, 8 - 0.25])
    whitened = credit(forest, value, level="turn", lam=0.0, whiten="turn")  # of 6.75 and 7.75, no other turn enters
    assert whitened.tolist() == pytest.approx([-(0.5**0.5)] * 2 + [0.0, 0.5**0.5])
    assert target(forest, value, level="turn", lam=0.0)[[0, 1, 3]].tolist() == pytest.approx([7.25, 7.25, 8.0])
    assert ends(forest.path_step, forest.path_trainable, 4)[0].tolist() == [0, -1, -1, 3]


def by_levels(
    forest: Forest, value: list[float], level: str, g: float, between: float, lam: float, extend: bool, at: int
):
    """Advantages and lambda-returns, trajectory by trajectory, turn by turn, backwards."""
    advantage, targets = [0.0] * forest.n_entries, [float("nan")] * forest.n_entries
    for r in range(forest.n_trajectories):
        steps = [s for s in range(forest.n_steps) if int(forest.step_trajectory[s]) == r]
        paid = {s: float(forest.step_reward[s]) for s in steps}
        unfinished = extend and bool(forest.truncated[r])
        if all(x != x for x in paid.values()):
            paid = dict.fromkeys(steps, 0.0)
            paid[steps[-1]] = 0.0 if unfinished else float(forest.outcome[r])
        own_values: dict[int, list[int]] = {}
        for p in forest.path_of(r).tolist():
            if bool(forest.path_trainable[p]):
                own_values.setdefault(int(forest.path_step[p]), []).append(p)
        reward = dict.fromkeys(own_values, 0.0)
        for s in steps:
            before = [k for k in own_values if k <= s]
            if before and paid[s] == paid[s]:
                reward[before[-1]] += paid[s]
        ahead, later = 0.0, None
        chain = []  # tokens of the turns after, for level "token"
        for s in reversed(list(own_values)):
            tokens = own_values[s]
            v = value[tokens[at]]
            if level == "token":
                for i, p in reversed(list(enumerate(tokens))):
                    is_last = i == len(tokens) - 1
                    time = between if is_last else g
                    then = value[chain[0]] if chain else (value[p] if unfinished else 0.0)
                    rest = advantage[chain[0]] if chain else 0.0
                    advantage[p] = (reward[s] if is_last else 0.0) + time * then - value[p] + time * lam * rest
                    targets[p] = advantage[p] + value[p]
                    chain.insert(0, p)
                continue
            then = later if later is not None else (v if unfinished else 0.0)
            ahead = reward[s] + between * then - v + (between * lam * ahead if later is not None else 0.0)
            later = v
            if level == "turn":
                for p in tokens:
                    advantage[p], targets[p] = ahead, ahead + v
                continue
            rest = 0.0
            for i, p in reversed(list(enumerate(tokens))):
                if i == len(tokens) - 1:
                    rest = ahead + v - value[p]
                else:
                    rest = g * value[tokens[i + 1]] - value[p] + g * lam * rest
                advantage[p], targets[p] = rest, rest + value[p]
        if unfinished:
            for p in forest.path_of(r).tolist():
                targets[p] = float("nan")
    return advantage, targets


@settings(max_examples=60, deadline=None)
@given(
    forest=forests(unscored=False, texts=False, after=False, max_turns=4),
    seed=st.integers(0, 99),
    level=st.sampled_from(["token", "turn", "both"]),
    discounts=st.sampled_from([(1.0, 0.9), (0.9, 0.5), (0.5, 0.0), (0.0, 1.0)]),
    lam=st.sampled_from([0.95, 0.0, 1.0]),
    extend=st.booleans(),
    anchor=st.sampled_from(["first", "last"]),
)
def test_levels_equal_a_loop_on_any_forest(forest, seed, level, discounts, lam, extend, anchor) -> None:
    rng = random.Random(seed)
    forest = forest.replace(truncated=torch.tensor([rng.random() < 0.5 for _ in range(forest.n_trajectories)]).bool())
    value = [rng.uniform(-1, 1) for _ in range(forest.n_entries)]
    g, between = discounts
    expected, targets = by_levels(forest, value, level, g, between, lam, extend, 0 if anchor == "first" else -1)
    fields = {"level": level, "discount": g, "turn_discount": between, "lam": lam, "anchor": anchor}
    fields["truncation"] = "extend" if extend else "end"
    assert credit(forest, column(*value), **fields).tolist() == pytest.approx(expected, abs=1e-9)
    assert target(forest, column(*value), **fields).tolist() == pytest.approx(targets, abs=1e-9, nan_ok=True)


@settings(max_examples=25, deadline=None)
@given(forest=forests(unscored=False, after=False, max_turns=4), seed=st.integers(0, 99))
def test_with_full_lambda_both_levels_are_action_decomposition(forest, seed) -> None:
    """Both are what is still paid, discounted between turns, less the token's own value, wherever a turn's is read."""
    value = torch.rand(forest.n_entries, dtype=F64, generator=torch.Generator().manual_seed(seed))
    expected = credit(forest, value, turn_discount=0.9)
    for anchor in ("first", "last"):
        actual = credit(forest, value, level="both", turn_discount=0.9, anchor=anchor)
        assert torch.allclose(actual, expected, atol=1e-12)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 9999), lam=st.sampled_from([1.0, 0.8, 0.0]))
def test_turns_of_one_token_are_all_the_same(grow: Grow, seed, lam) -> None:
    """Token, turn and both, with one discount for all."""
    rng = random.Random(seed)
    rows = [("a", rng.random(), [1] * rng.randrange(1, 5)) for _ in range(3)]
    forest = grow(rows)
    value = column(*[rng.uniform(-1, 1) for _ in range(forest.n_entries)])
    expected = credit(forest, value, discount=0.9, lam=lam)
    for level in ("turn", "both"):
        for anchor in ("first", "last"):
            actual = credit(forest, value, level=level, discount=0.9, lam=lam, anchor=anchor)
            assert torch.allclose(actual, expected, atol=1e-12)


def test_one_turn_with_lambda_1_is_outcome_less_value(grow: Grow) -> None:
    forest, value = grow([("a", 1.0, [3]), ("a", 0.0, [2])]), column(0.25, 9, 9, 0.5, 9)
    expected = [0.75] * 3 + [-0.5] * 2
    assert credit(forest, value, level="turn").tolist() == pytest.approx(expected)
    # StepPO with one step a trajectory: whitened, (R - V - mean) / std over the two
    actual = credit(forest, value, level="turn", whiten="turn")
    root = 2**0.5 * 0.625  # of .75 and -.5: mean .125, deviations .625
    assert actual.tolist() == pytest.approx([0.625 / root] * 3 + [-0.625 / root] * 2, abs=1e-7)


def test_levels_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"credit\.whiten=turn"):
        Gae(whiten="turn")
    with pytest.raises(ConfigError, match=r"credit\.level=both without discounts"):
        Gae(level="both")
    with pytest.raises(ConfigError, match=r"credit\.whiten is 'other'; it is one of none, token, turn"):
        Gae(whiten="other")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"credit\.level is 'other'; it is one of token, turn, both"):
        Gae(level="other")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"credit\.target_at is 'other'; it is one of all, anchor"):
        Gae(target_at="other")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"credit\.level=both reads the value of every token"):
        Gae(level="both", target_at="anchor", turn_discount=0.9)
    with pytest.raises(ConfigError, match=r"credit\.turn_discount is 2"):
        Gae(level="turn", turn_discount=2)
    with pytest.raises(ConfigError, match=r"credit\.anchor"):
        Gae(level="turn", anchor="middle")  # type: ignore[arg-type]


# ---------------------------------------------------------------- errata
def test_a_turn_that_pays_nothing_is_a_turn() -> None:
    """RAGEN's port finds turn ends where the reward isn't 0: three turns that pay 0, 0, 1 are one to it, which makes it
    GAE over tokens with values at every token, .5 everywhere: with gH = .5 and l = 1, 1 - .5 throughout. Turns count
    whatever they pay: .5 * .5 * 1 - .5, .5 * 1 - .5, 1 - .5."""
    forest, value = turns((1, 0.0), (1, 0.0), (1, 1.0)), column(0.5, 0.5, 0.5)
    actual = credit(forest, value, level="both", turn_discount=0.5, anchor="last")
    assert actual.tolist() == pytest.approx([-0.25, 0.0, 0.5])
    merged = bilevel_gae(column(1.0), torch.tensor([2]), value, one(3), one(3) == 0)
    assert merged.tolist() == pytest.approx([0.5, 0.5, 0.5])


def test_undiscounted_bi_level_gae_is_over_tokens() -> None:
    """VAGEN warns that equal discounts and lambda 1 make it GAE over tokens. That is so at discount 1; below it a turn
    of two tokens costs one discount in the first pass and two in GAE over tokens: .5 * .5 * 1 against .5 * .25."""
    forest, value = turns((1, 0.0), (2, 1.0)), torch.zeros(3, dtype=F64)
    both = credit(forest, value, level="both", discount=0.5)
    assert both.tolist() == pytest.approx([0.5, 0.5, 1.0])
    assert credit(forest, value, discount=0.5).tolist() == pytest.approx([0.25, 0.5, 1.0])
