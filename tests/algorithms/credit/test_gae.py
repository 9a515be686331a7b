"""GAE over tokens: the card's numbers, loops over dictionaries, observations that must not enter, reductions."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.algorithms.credit.gae_columns import F64, column, credit, one, target
from tests.strategies import forests

import gxpo
from gxpo.algorithms.credit import GroupRelative
from gxpo.algorithms.credit.gae import Gae, gae, on_tokens
from gxpo.base.errors import ConfigError, GxpoError
from gxpo.forest.forest import Forest

Grow = Callable[..., Forest]


# ---------------------------------------------------------------- worked numbers
def test_card_three_tokens() -> None:
    """delta = [.6-.5, .7-.6, 1-.7] = [.1, .1, .3]; A3 = .3, A2 = .1 + .95*.3 = .385, A1 = .1 + .95*.385 = .46575."""
    actual = gae(column(0, 0, 1), column(0.5, 0.6, 0.7), one(3), one(3) == 0, lam=0.95)
    assert actual.tolist() == pytest.approx([0.465750, 0.385, 0.3], abs=1e-12)


def test_card_masked_tokens_never_enter() -> None:
    """Observations hold a value of 9.9. With g = l = 1, A = (sum of the rewards from here on) - V:
    1.1 - .1, 1.1 - .25, 1.1 - .4 | .8 - .55, .8 - .7 | 1 - .85."""
    mask = torch.tensor([1, 1, 1, 0, 1, 1, 0, 1]).bool()
    reward = column(0, 0, 0.3, 0, 0, -0.2, 0, 1)
    value = column(0.10, 0.25, 0.40, 9.9, 0.55, 0.70, 9.9, 0.85)
    actual = gae(reward, value, one(8), mask)
    assert actual.tolist() == pytest.approx([1.0, 0.85, 0.70, 0.0, 0.25, 0.10, 0.0, 0.15], abs=1e-12)


def test_card_masked_tokens_in_a_forest() -> None:
    """The same as three turns with step rewards; the observations are no entries of P at all."""
    turns = [([1, 2, 3], 0.3), ([4, 5], -0.2), ([6], 1.0)]
    record = {
        "schema": "gxpo.rollouts/1",
        "group": "g",
        "id": "t",
        "prompt": [9],
        "turns": [{"observation": [7, 8], "action": a, "logprob": [-1.0] * len(a), "reward": r} for a, r in turns],
        "reward": 1.1,
    }
    forest, value = Forest.from_records([record]), column(0.10, 0.25, 0.40, 0.55, 0.70, 0.85)
    assert credit(forest, value).tolist() == pytest.approx([1.0, 0.85, 0.70, 0.25, 0.10, 0.15], abs=1e-12)


def test_card_of_extended_gae() -> None:
    """r = 0, V = [.4, .5, .6], l = .9, cut: delta = [.1, .1, .6 - .6]; A = [.1 + .9*.1, .1 + .9*0, 0]."""
    actual = gae(column(0, 0, 0), column(0.4, 0.5, 0.6), one(3), one(3) == 0, lam=0.9, cut=one(3) == 0)
    assert actual.tolist() == pytest.approx([0.19, 0.1, 0.0], abs=1e-12)


def test_a_cut_ends_in_reward_and_discounted_value() -> None:
    """r + (g - 1) V = 2 + (.9 - 1) * .5 = 1.95."""
    actual = gae(column(2), column(0.5), one(1), one(1) == 0, discount=0.9, cut=one(1) == 0)
    assert actual.tolist() == pytest.approx([1.95])


# ---------------------------------------------------------------- against loops
def by_hand(forest: Forest, value: list[float], discount: float, lam: float, extend: bool) -> tuple[list, list]:
    """Advantages and targets from the records' own lists, trajectory by trajectory, backwards."""
    advantage, targets = [0.0] * forest.n_entries, [float("nan")] * forest.n_entries
    for r in range(forest.n_trajectories):
        steps = [s for s in range(forest.n_steps) if int(forest.step_trajectory[s]) == r]
        paid = {s: float(forest.step_reward[s]) for s in steps}
        unfinished = extend and bool(forest.truncated[r])
        if all(x != x for x in paid.values()):
            paid = dict.fromkeys(steps, 0.0)
            paid[steps[-1]] = 0.0 if unfinished else float(forest.outcome[r])
        tokens = [p for p in forest.path_of(r).tolist() if bool(forest.path_trainable[p])]
        reward = dict.fromkeys(tokens, 0.0)
        for s in steps:
            until = [p for p in tokens if int(forest.path_step[p]) <= s]
            if until and paid[s] == paid[s]:
                reward[until[-1]] += paid[s]
        later, ahead = None, 0.0
        for p in reversed(tokens):
            beyond = value[later] if later is not None else (value[p] if unfinished else 0.0)
            ahead = reward[p] + discount * beyond - value[p] + (discount * lam * ahead if later is not None else 0.0)
            advantage[p], later = ahead, p
            targets[p] = float("nan") if unfinished else ahead + value[p]
    return advantage, targets


@settings(max_examples=40, deadline=None)
@given(
    forest=forests(unscored=False, texts=False, after=False, max_turns=4),
    seed=st.integers(0, 99),
    discount=st.sampled_from([1.0, 0.9, 0.0]),
    lam=st.sampled_from([1.0, 0.95, 0.0]),
    extend=st.booleans(),
)
def test_equals_a_loop_on_any_forest(forest, seed, discount, lam, extend) -> None:
    """Forks, empty actions, tokens of others, step rewards here and there, trajectories cut."""
    rng = random.Random(seed)
    forest = forest.replace(truncated=torch.tensor([rng.random() < 0.5 for _ in range(forest.n_trajectories)]).bool())
    value = [rng.uniform(-1, 1) for _ in range(forest.n_entries)]
    fields = {"discount": discount, "lam": lam, "truncation": "extend" if extend else "end"}
    expected, targets = by_hand(forest, value, discount, lam, extend)
    assert credit(forest, column(*value), **fields).tolist() == pytest.approx(expected, abs=1e-9)
    assert target(forest, column(*value), **fields).tolist() == pytest.approx(targets, abs=1e-9, nan_ok=True)


@settings(max_examples=25, deadline=None)
@given(forest=forests(unscored=False, after=False), seed=st.integers(0, 99))
def test_full_lambda_is_the_return_less_the_value(forest, seed) -> None:
    """l = g = 1: A_t + V_t is all that is paid from here on; at a trajectory's first trainable token, all of it."""
    rng = random.Random(seed)
    value = column(*[rng.uniform(-1, 1) for _ in range(forest.n_entries)])
    got = credit(forest, value) + value
    for r in range(forest.n_trajectories):
        tokens = [p for p in forest.path_of(r).tolist() if bool(forest.path_trainable[p])]
        steps = (forest.step_trajectory == r).nonzero().squeeze(1).tolist()
        rewards = [float(forest.step_reward[s]) for s in steps]
        known_rewards = [x for x in rewards if x == x]
        late = (
            [x for s, x in zip(steps, rewards, strict=True) if x == x and s >= int(forest.path_step[tokens[0]])]
            if (tokens)
            else []
        )
        total = sum(late) if known_rewards else float(forest.outcome[r])
        if tokens:
            assert float(got[tokens[0]]) == pytest.approx(total, abs=1e-9)


def test_without_lambda_it_is_the_temporal_difference() -> None:
    actual = gae(column(0, 1, 5), column(1, 2, 4), torch.tensor([0, 0, 1]), one(3) == 0, discount=0.5, lam=0.0)
    assert actual.tolist() == [0 + 0.5 * 2 - 1, 1 - 2, 5 - 4]


def test_a_constant_value_of_the_group_mean_is_the_mean_baseline(grow: Grow) -> None:
    """V = the group's mean outcome everywhere, l = g = 1: Dr. GRPO's credit."""
    forest = grow([("a", 1.0, [2, 3]), ("a", 0.0, [1]), ("b", 0.5, [2]), ("b", 1.0, [1, 1])])
    value = torch.tensor([0.5] * 6 + [0.75] * 4, dtype=F64)
    expected = GroupRelative(scale="none")(forest, {}, 0)
    assert credit(forest, value).tolist() == pytest.approx(expected.tolist(), abs=1e-12)


# ---------------------------------------------------------------- whose tokens, whose rewards
def test_tokens_of_other_authors_are_passed_over(grow: Grow) -> None:
    """Their values, however wild, change nothing; they have credit 0 and no target."""
    trainable = [[True, False, True], [False], [True, False]]
    record = {
        "schema": "gxpo.rollouts/1",
        "group": "g",
        "id": "t",
        "prompt": [1],
        "turns": [{"observation": [2], "action": [3] * len(t), "trainable": t} for t in trainable],
        "reward": 1.0,
    }
    forest = Forest.from_records([record])
    for wild in (9.9, -1e6):
        value = column(0.1, wild, 0.2, wild, 0.4, wild)
        actual = credit(forest, value, lam=0.5)
        # A = 1 - .4 = .6;  .4 - .2 + .5*.6 = .5;  .2 - .1 + .5*.5 = .35
        assert actual.tolist() == pytest.approx([0.35, 0.0, 0.5, 0.0, 0.6, 0.0])
        expected = [0.45, float("nan"), 0.7, float("nan"), 1.0, float("nan")]
        assert target(forest, value, lam=0.5).tolist() == pytest.approx(expected, nan_ok=True)
    missing = column(0.1, float("nan"), 0.2, float("nan"), 0.4, float("nan"))
    assert credit(forest, missing, lam=0.5).tolist() == pytest.approx([0.35, 0.0, 0.5, 0.0, 0.6, 0.0])


def test_an_untrained_step_pays_the_last_token_before_it() -> None:
    """Steps pay 1, 2, 4, 8; the second is another's: 1 + 2 go to the first. Nothing led to what is paid before any."""
    step, counted = torch.tensor([0, 0, 1, 2, 3]), torch.tensor([1, 1, 0, 1, 1]).bool()
    assert on_tokens(column(1, 2, 4, 8), one(4), step, counted).tolist() == [0, 3, 0, 4, 8]
    later = torch.tensor([0, 0, 0, 1, 1]).bool()
    assert on_tokens(column(1, 2, 4, 8), torch.tensor([0, 0, 0, 1]), step, later).tolist() == [0, 0, 0, 4, 8]


def test_step_rewards_go_in_place_of_the_outcome(grow: Grow) -> None:
    """Where a trajectory has any, they are what is paid; the outcome is complete in itself and not added."""
    forest = grow([("a", 7.0, [2, 1], {"step_rewards": [None, 0.5]}), ("a", 7.0, [2, 1])])
    assert credit(forest, torch.zeros(6, dtype=F64)).tolist() == [0.5] * 3 + [7.0] * 3


def test_unscored_trajectories_have_no_credit_and_change_nothing(grow: Grow) -> None:
    m = gxpo.method("grpo", {"credit": Gae, "credit.whiten": "token"})
    rows = [("a", 1.0, [2]), ("a", None, [3]), ("a", 0.0, [1])]
    forest, value = grow(rows), column(0.1, 0.2, 9, 9, 9, 0.3)
    advantages_of_one = m.advantages(grow([rows[0], rows[2]]), {"value": value[[0, 1, 5]]})
    actual = m.advantages(forest, {"value": value})
    assert actual[2:5].tolist() == [0.0] * 3 and torch.equal(actual[[0, 1, 5]], advantages_of_one)


# ---------------------------------------------------------------- cut, whitening, target
def test_a_trajectory_that_was_cut(grow: Grow) -> None:
    """ "end": over, outcome paid. "extend": the outcome is not paid, the value goes on, the critic is not trained."""
    forest = grow([("a", 1.0, [2], {"truncated": True}), ("a", 1.0, [2])])
    value = column(0.4, 0.5, 0.4, 0.5)
    assert credit(forest, value).tolist() == pytest.approx([0.6, 0.5, 0.6, 0.5])
    assert credit(forest, value, truncation="extend").tolist() == pytest.approx([0.1, 0.0, 0.6, 0.5])
    nan = float("nan")
    assert target(forest, value, truncation="extend").tolist() == pytest.approx([nan, nan, 1.0, 1.0], nan_ok=True)
    assert target(forest, value).tolist() == pytest.approx([1.0] * 4)


def test_step_rewards_of_a_trajectory_that_was_cut_are_paid(grow: Grow) -> None:
    """r = [.3, 0], V = [.4, .5]: A = .3 + .5 - .4 + 0."""
    forest = grow([("a", 1.0, [1, 1], {"truncated": True, "step_rewards": [0.3, None]})])
    assert credit(forest, column(0.4, 0.5), truncation="extend").tolist() == pytest.approx([0.4, 0.0])


def test_the_target_has_its_own_lambda_and_is_unwhitened(grow: Grow) -> None:
    forest, value = grow([("a", 1.0, [2]), ("a", 0.0, [1])]), column(0.5, 0.25, 0.75)
    # l = 0: r + V' = [.25, 1, 0];  l = 1: the return = [1, 1, 0]
    fields = {"lam": 0.0, "whiten": "token"}
    assert target(forest, value, **fields).tolist() == pytest.approx([0.25, 1.0, 0.0])
    assert target(forest, value, target_lam=1.0, **fields).tolist() == pytest.approx([1.0, 1.0, 0.0])


def test_whitening_is_over_trainable_tokens_of_the_batch(grow: Grow) -> None:
    """A = [.5, .5, -.5]: mean 1/6, unbiased variance (2/9)*... = ((1/3)^2 + (1/3)^2 + (2/3)^2) / 2 = 1/3."""
    forest, value = grow([("a", 1.0, [2]), ("b", 0.0, [1])]), column(0.5, 0.5, 0.5)
    root = (1 / 3 + 1e-8) ** 0.5
    expected = [(1 / 3) / root, (1 / 3) / root, (-2 / 3) / root]
    assert credit(forest, value, whiten="token").tolist() == pytest.approx(expected, abs=1e-12)


def test_a_reward_penalty_is_in_advantage_and_target(grow: Grow) -> None:
    """k1 of log-probs -1 against -1.5: .5 a token; outcome 1 - .1 * (.5 + .5) = .9; A = .9 - V, the target .9."""
    m = gxpo.method("gae", {"objective.kl.coef": 0.1, "objective.kl.place": "reward", "objective.kl.estimator": "k1"})
    forest = grow([("a", 1.0, [2]), ("a", None, [1])])
    logprobs = {"proximal_logprob": column(-1, -1, -1), "reference_logprob": column(-1.5, -1.5, -1.5)}
    signals = {"value": column(0.25, 0.5, 7.0), **logprobs}
    assert m.advantages(forest, signals).tolist() == pytest.approx([0.65, 0.4, 0.0])
    assert m.targets(forest, signals)["value_target"][:2].tolist() == pytest.approx([0.9, 0.9])


def test_bad_settings_and_missing_values_are_refused(grow: Grow) -> None:
    with pytest.raises(ConfigError, match=r"credit\.lam is 1\.5"):
        Gae(lam=1.5)
    with pytest.raises(ConfigError, match=r"credit\.truncation"):
        Gae(truncation="bootstrap")  # type: ignore[arg-type]
    with pytest.raises(GxpoError, match="value of 1 of 2 trainable tokens is not finite"):
        credit(grow([("a", 1.0, [2])]), column(0.1, float("nan")))


def test_whitened_over_the_compared(grow):
    # discount and lambda 1, values 0: the advantages are the outcomes; of 1 0 0 the mean is 1/3, the variance 1/3
    rows = [("a", 1.0, [1]), ("a", 0.0, [1]), ("a", 0.0, [1]), ("a", 2.0, [1], {"compared": False})]
    actual = Gae(whiten="token")(grow(rows), {"value": torch.zeros(4)}, 0)
    assert actual.tolist() == pytest.approx([1.154701, -0.577350, -0.577350, 2.886751], abs=1e-6)


def test_payments_of_trajectories_of_one_token_and_of_none():
    rows, float32 = torch.arange(2), torch.tensor([0.1, 2.0])
    assert on_tokens(float32, rows, rows, rows >= 0).tolist() == float32.double().tolist()
    nothing = rows[:0]
    assert on_tokens(float32, rows, nothing, nothing >= 0).shape == (0,)


# ---------------------------------------------------------------- errata
def test_a_tail_is_left_out_of_unfinished_trajectories_alone() -> None:
    rows = [{"schema": "gxpo.rollouts/1", "group": "g", "id": f"t{i}", "prompt": [1], "reward": 1.0} for i in range(2)]
    acts = [{"action": [5] * 4, "logprob": [-1.0] * 4}]
    records = [{**rows[0], "turns": acts, "truncated": True}, {**rows[1], "turns": acts}]
    forest = Forest.from_records(records)
    signals = {"value": torch.linspace(0.1, 0.8, 8, dtype=torch.float64)}
    full_value = Gae(truncation="extend", lam=0.5)(forest, signals, 0).tolist()
    assert Gae(truncation="trim", lam=0.5, tail=0)(forest, signals, 0).tolist() == full_value
    cut = Gae(truncation="trim", lam=0.5, tail=2)(forest, signals, 0).tolist()
    assert cut == [*full_value[:2], 0.0, 0.0, *full_value[4:]] and full_value[2] != 0.0
    assert Gae(truncation="trim")(forest, signals, 0)[:4].tolist() == [0.0] * 4
    with pytest.raises(ConfigError, match=r"credit\.tail"):
        Gae(tail=1)
