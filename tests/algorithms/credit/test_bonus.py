"""Bounded bonuses on the advantage: the cards' numbers, bounds, loops, and GRPO without them."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.strategies import forests

import gxpo
from gxpo.algorithms.credit import GroupRelative, advantage
from gxpo.algorithms.credit.baselines import constant_advantage
from gxpo.algorithms.credit.bonus import Bonus, bounded, mean_of_lowest
from gxpo.algorithms.signals import Signals
from gxpo.base.errors import ConfigError, MissingSignal
from gxpo.forest.forest import Forest

F64 = torch.float64
NUMBERS = st.floats(-3, 3, allow_nan=False)
GAP = {"value": "gap", "low": -0.2, "high": 0.28}
CONFIDENCE = {"value": "confidence_gap", "factor": 0.3}


def column(*x):
    return torch.tensor(x, dtype=F64)


# ---------------------------------------------------------------- VERL: a signal
def test_a_bonus_turns_nothing_around() -> None:
    """A = [1, -1], bonuses [.3, .9], kappa 2: 1 + .3; -1 + min(.9, .5)."""
    a = column(1.0, -1.0)
    assert (a + bounded(column(0.3, 0.9), a, low=0.0, kappa=2.0)).tolist() == pytest.approx([1.3, -0.5])


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=8), st.sampled_from([1.0, 2.0, 5.0]))
def test_bounds_by_the_size_of_the_advantage(rows: list[tuple[float, float]], kappa: float) -> None:
    a, bonus = torch.tensor(rows, dtype=F64).unbind(1)
    moved = bounded(bonus, a, low=0.0, kappa=kappa)
    assert bool((moved >= 0).all()) and bool((moved <= a.abs() / kappa + 1e-12).all())
    assert bool((moved[(bonus <= 0) | (a == 0)] == 0).all())
    assert bool(((a + moved) * a >= 0).all())


@settings(max_examples=25, deadline=None)
@given(forest=forests(), seed=st.integers(0, 99), at=st.sampled_from(["all", "last"]))
def test_equals_a_loop_over_grpo(forest: Forest, seed: int, at: str) -> None:
    generator = torch.Generator().manual_seed(seed)
    bonus = torch.randn(forest.n_trajectories, generator=generator, dtype=F64)
    bonus[::3] = math.nan
    plain = gxpo.method("grpo").advantages(forest)
    actual = gxpo.method("verl_rank", {"credit.add.bonus.position": at}).advantages(forest, {"bonus": bonus})
    for r in range(forest.n_trajectories):
        trained = [p for p in forest.path_of(r).tolist() if bool(forest.path_trainable[p])]
        for p in forest.path_of(r).tolist():
            a, b = float(plain[p]), float(bonus[r])
            raise_ = at == "all" or p == (trained[-1] if trained else None)
            more = min(b, abs(a) / 2) if raise_ and b > 0 else 0.0
            assert float(actual[p]) == pytest.approx(a + more, abs=1e-12)


def test_a_bonus_on_the_last_token_is_worth_one_token() -> None:
    """The released code: of four tokens of A = 1 and a bonus of .5, [1, 1, 1, 1.5]; the paper's is 1.5 throughout."""
    forest = Forest.from_completions([[1]], [[[2, 3, 4, 5], [6]]], [1.0, 0.0])
    signals = {"bonus": torch.tensor([0.5, -1.0], dtype=F64)}
    changed = {"credit.scale": "none", "credit.add.bonus.kappa": 1.0}
    all_ = gxpo.method("verl_rank", changed).advantages(forest, signals)
    last = gxpo.method("verl_rank", {**changed, "credit.add.bonus.position": "last"}).advantages(forest, signals)
    assert all_.tolist() == [1.0] * 4 + [-0.5] and last.tolist() == [0.5, 0.5, 0.5, 1.0, -0.5]


# ---------------------------------------------------------------- AAPO: the gap to a baseline
def credits(forest, name, baseline, **overrides):
    signals = {"baseline": torch.tensor(baseline, dtype=torch.float64)}
    return gxpo.method(name, overrides).advantages(forest, signals).tolist()


def test_aapos_numbers(grow):
    # mean .75, sample std .5: .25 / .5001 = .4999, -.75 / .5001 = -1.4997; gaps 1, 0, 0, 1 -> .28, 0, 0, .28
    eps = {"credit.eps": 1e-4}
    mixed = grow([("g", r, [1]) for r in (1.0, 0.0, 1.0, 1.0)])
    actual = credits(mixed, "aapo", [0.0, 0.0, 1.0, 0.0], **eps)
    assert actual == pytest.approx([0.7799, -1.4997, 0.4999, 0.7799], abs=1e-6)
    right = grow([("g", 1.0, [1])] * 4)
    assert credits(right, "aapo", [0.0, 0.0, 1.0, 0.0], **eps) == [0.28, 0.28, 0.0, 0.28]


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=8), st.floats(-1, 0), st.floats(0, 1))
def test_a_gap_is_clipped_to_its_bounds(rows, low, high):
    gaps = column(*(r - b for r, b in rows))
    for value, (r, b) in zip(bounded(gaps, torch.zeros(len(rows)), low, high).tolist(), rows, strict=True):
        assert value == (low if r - b < low else high if r - b > high else r - b)


def test_without_a_gap_it_is_grpo(grow):
    rewards = [1.0, 0.0, 0.3, 0.3, 0.9]
    forest = grow([("a", r, [2]) for r in rewards[:3]] + [("b", r, [1]) for r in rewards[3:]])
    assert credits(forest, "aapo", rewards) == GroupRelative()(forest, {}, 0).tolist()


def test_an_unscored_row_has_no_bonus_and_changes_no_other(grow):
    rows = [("g", 1.0, [1]), ("g", None, [2]), ("g", 0.0, [1])]
    actual = credits(grow(rows), "aapo", [0.0, 0.5, 0.0])
    assert actual[1:3] == [0.0, 0.0]
    credits_of_one = credits(grow([rows[0], rows[2]]), "aapo", [0.0, 0.0])
    assert [actual[0], actual[3]] == credits_of_one and credits_of_one[0] == pytest.approx(
        0.5 / (math.sqrt(0.5) + 1e-6) + 0.28
    )


def test_the_baseline_is_asked_for(grow):
    with pytest.raises(MissingSignal, match="baseline"):
        gxpo.method("aapo").advantages(grow([("g", 1.0, [1]), ("g", 0.0, [1])]))


def test_the_gradient_is_that_of_the_log_likelihood(grow):
    """One update a step: dL/dlogp = -A / tokens, for any behaviour policy, however good the answer."""
    forest = grow([("g", 1.0, [2]), ("g", 0.0, [1]), ("g", 0.0, [3])])
    m, baseline = gxpo.method("aapo"), {"baseline": torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)}
    logprob = torch.linspace(-3, -0.1, 6, dtype=torch.float64).requires_grad_()
    policy = gxpo.PolicyTokens(logprob, forest.path_behaviour_logprob, proximal_logprob=logprob.detach())
    credit = m.advantages(forest, baseline)
    (gradient,) = torch.autograd.grad(m.loss(forest, policy, advantages=credit, signals=baseline).value, logprob)
    assert torch.allclose(gradient, -credit / 6, rtol=0, atol=1e-15)
    assert float(credit[0]) == pytest.approx(2 / 3 / (math.sqrt(1 / 3) + 1e-6) + 0.28)


# ---------------------------------------------------------------- ProGRPO: the gap of confidences
def spoken(rows):
    """(group, reward, log-probs, fields of the record)"""
    records = []
    for i, (group, reward, logprobs, fields) in enumerate(rows):
        turn = {"action": [3] * len(logprobs), "logprob": list(logprobs)}
        record = {"schema": "gxpo.rollouts/1", "group": group, "id": f"t{i}", "prompt": [1, 2], "turns": [turn]}
        records.append(record | {"reward": reward} | fields)
    return Forest.from_records(records)


def signals_of(forest, prompt):
    signals = {"prompt_confidence": torch.tensor(prompt, dtype=torch.float64)}
    return Signals.of(forest, signals, {"prompt_confidence": "R"})


def test_progrpos_numbers():
    # A = 1.732051 -.577350 x3 (population std); .3 (.6 - [.9 .5 .4 .7]) = -.09 .03 .06 -.03
    rows = [("g", r, [math.log(c)] * 3, {}) for r, c in zip((1.0, 0, 0, 0), (0.9, 0.5, 0.4, 0.7), strict=True)]
    forest = spoken(rows)
    both = GroupRelative(ddof=0, eps=0.0) + Bonus(**CONFIDENCE)
    actual = both(forest, signals_of(forest, [0.6] * 4), 0)[::3]
    assert actual.tolist() == pytest.approx([1.642051, -0.547350, -0.517350, -0.607350], abs=1e-6)
    assert both.learns_from_equal_groups and both.needs == ("prompt_confidence",)


def test_confidence_is_over_the_least_probable_fifth():
    """Ten tokens: the two lowest, -3 and -2, mean -2.5; four tokens: one, -2; a share of 1: all."""
    x = torch.tensor([-0.1] * 4 + [-3.0] + [-0.1] * 4 + [-2.0] + [-0.5, -2.0, -1.0, -0.5], dtype=torch.float64)
    owner = torch.tensor([0] * 10 + [2] * 4)
    assert mean_of_lowest(x, owner, 3, 0.2).tolist() == pytest.approx([-2.5, 0.0, -2.0])
    assert mean_of_lowest(x, owner, 3).tolist() == pytest.approx([-0.58, 0.0, -1.0])


ROWS = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        st.sampled_from([None, 0.0, 1.0]),
        st.lists(st.floats(-5, 0), min_size=1, max_size=7),
        st.booleans(),
        st.floats(0, 1),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=60, deadline=None)
@given(rows=ROWS, alpha=st.floats(-1, 1), share=st.sampled_from([0.2, 0.5, 1.0]))
def test_the_confidence_gap_equals_a_loop(rows, alpha, share):
    forest = spoken([(g, r, lp, {"compared": c, "success": r if r is None else r > 0}) for g, r, lp, c, _ in rows])
    m = gxpo.method("progrpo", {"credit.scale": "none", "credit.add.confidence_gap.factor": alpha,
                                "credit.add.confidence_gap.share": share})  # fmt: skip
    actual = m.advantages(forest, {"prompt_confidence": torch.tensor([q for *_, q in rows], dtype=torch.float64)})
    for i, (g, r, logprobs, _, q) in enumerate(rows):
        peers = [s for h, s, _, c, _ in rows if h == g and c and s is not None]
        expected = 0.0
        if r is not None:
            k = math.ceil(share * len(logprobs) - 1e-9)
            own_math = math.exp(sum(sorted(logprobs)[:k]) / k)
            expected = r - sum(peers) / len(peers) if peers else 0.0
            expected += alpha * (q - own_math) if any(p > 0 for p in peers) else 0.0
        assert actual[forest.path_of(i)].tolist() == pytest.approx([expected] * len(logprobs), abs=1e-9)


def test_all_wrong_groups_have_none_and_all_right_ones_learn():
    forest = spoken([(g, r, [-1.0], {}) for g, r in (("a", 0.0), ("a", 0.0), ("b", 1.0), ("b", 1.0))])
    actual = gxpo.method("progrpo").advantages(forest, {"prompt_confidence": torch.full((4,), 0.5)})
    assert actual.tolist() == pytest.approx([0, 0] + [0.3 * (0.5 - math.exp(-1))] * 2)


def test_verdicts_go_first_and_surer_answers_get_less():
    c = torch.linspace(0.1, 0.9, 5)
    right = spoken([("a", 1.0, [math.log(x)], {}) for x in c.tolist()])
    actual = Bonus(**CONFIDENCE)(right, signals_of(right, [0.5] * 5), 0)
    assert bool((actual.diff() < 0).all()) and float(actual[2]) == pytest.approx(0.0)
    wrong = spoken([("a", 1.0, [-1.0], {"success": False}), ("a", 0.5, [-2.0], {"success": False})])
    assert Bonus(**CONFIDENCE)(wrong, signals_of(wrong, [0.5, 0.5]), 0).tolist() == [0.0, 0.0]


def test_unknown_log_probs_are_refused():
    forest = spoken([("a", 1.0, [-1.0, None], {}), ("a", 0.0, [-1.0, -1.0], {})])
    with pytest.raises(MissingSignal, match="nan for 1 of 4"):
        Bonus(**CONFIDENCE)(forest, signals_of(forest, [0.5, 0.5]), 0)
    with pytest.raises(ConfigError, match="drops"):  # groups that are all right would not reach it
        gxpo.method("progrpo+dapo")


def test_the_share_of_tokens_is_not_rounded_up():
    x = torch.tensor([-1.0] * 15 + [0.0] * 10)  # .6 * 25 = 15, in float32 a little more
    assert mean_of_lowest(x, torch.zeros(25).long(), 3, 0.6).tolist() == [-1.0, 0.0, 0.0]


# ---------------------------------------------------------------- GTPO: the cost of entropy
def forest_of(*rows):
    """(reward, tokens, fields of the record)"""
    records = []
    for i, (reward, n, fields) in enumerate((r[0], r[1], dict(r[2]) if len(r) > 2 else {}) for r in rows):
        turn = {"action": [5] * n, "logprob": [-1.0] * n, "trainable": fields.pop("trainable", True)}
        record = {"schema": "gxpo.rollouts/1", "group": "a", "id": f"t{i}", "prompt": [1], "reward": reward}
        records.append(record | {"turns": [turn]} | fields)
    return Forest.from_records(records)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.tuples(st.floats(0, 5), st.booleans()), min_size=1, max_size=4), min_size=1, max_size=5))
def test_the_cost_of_entropy_equals_a_loop(rows):
    forest = forest_of(*((1.0, len(row), {"trainable": [t for _, t in row]}) for row in rows))
    entropy = column(*(h if t else math.nan for row in rows for h, t in row))
    actual = Bonus("certainty", 0.3)(forest, {"entropy": entropy}, 0)
    for i, row in enumerate(rows):
        own_rows = [h for h, t in row if t]
        target = -0.3 * sum(own_rows) / len(own_rows) if own_rows else 0.0
        assert actual[forest.path_of(i)].tolist() == pytest.approx([target] * len(row))


def test_it_is_added_after_the_group_and_equal_groups_pay_too() -> None:
    m = gxpo.method("grpo", {"credit.add.cost": Bonus("certainty", 0.1), "credit.scale": "none"})
    assert m.credit.learns_from_equal_groups and "entropy" in m.needs
    mixed = m.advantages(forest_of((1.0, 1), (0.0, 1), (None, 1)), {"entropy": column(0.5, 2.0, 9.0)})
    assert mixed.tolist() == pytest.approx([0.45, -0.7, 0.0])  # one that is not scored has exactly 0
    assert m.advantages(forest_of((1.0, 1), (1.0, 1)), {"entropy": column(0.5, 2.0)}).tolist() == pytest.approx(
        [-0.05, -0.2]
    )


def test_a_credit_by_origin_stands_alone_in_a_group_of_its_own() -> None:
    m = gxpo.method("grpo", {"credit.add.for_origin": constant_advantage, "credit.scale": "none"})
    guest = {"origin": "tempered", "group": "t", "compared": False}
    assert m.advantages(forest_of((1.0, 2), (0.0, 1), (0.0, 1, guest))).tolist() == [0.5, 0.5, -0.5, 1.0]
    other = advantage(constant_advantage, origin="replay", value=-2.0)(
        forest_of((1.0, 1), (1.0, 1, {"origin": "replay"})), {}, 0
    )
    assert other.tolist() == [0.0, -2.0]


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(MissingSignal, match="nan for 1 of 2"):
        Bonus("certainty")(forest_of((1.0, 2)), {"entropy": column(0.1, math.nan)}, 0)
    for field, value in (("kappa", 0.5), ("position", "first"), ("low", 0.1), ("high", -0.1), ("share", 0.0)):
        with pytest.raises(ConfigError, match=rf"credit\.{field} is"):
            Bonus(**{field: value})
    with pytest.raises(ConfigError, match=r"^credit\.value is inf"):
        advantage(constant_advantage, value=math.inf)


def test_a_bound_by_the_advantage_scales_with_a_sum() -> None:
    forest = forest_of((1.0, 1), (0.0, 1))
    one = GroupRelative(scale="none") + Bonus(low=0.0, kappa=2.0)
    signals = Signals({"bonus": column(9.0, 0.1)})
    assert one(forest, signals, 0).tolist() == [0.75, -0.4]
    assert (2.0 * one)(forest, signals, 0).tolist() == [1.5, -0.8]
    assert not one.learns_from_equal_groups and one.needs == ("bonus",)
