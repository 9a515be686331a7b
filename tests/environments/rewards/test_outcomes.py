"""Shaping functions of `reward.shape`: tiers, rescaling, factors, soft thresholds, bonuses, entities, prefixes."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.environments.rewards.scored_tasks import Source
from tests.environments.rewards.shapes import shape
from tests.strategies import random_forest

import gxpo
from gxpo.base.errors import ConfigError
from gxpo.environments.rewards import RewardSet
from gxpo.environments.rewards.built_in import Entities, mentioned
from gxpo.environments.rewards.outcomes import (
    correct_prefix,
    entity_match,
    process_bonus,
    rescaled,
    soft_threshold,
    tiered,
)
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Task

Tiered = shape("tiered")

nan = float("nan")
UNIT = st.floats(0, 1)


def grown(rows: list[tuple], name: str = "progress") -> Forest:
    """(group, right, component) with whether it is compared in a fourth place; right None: unscored."""
    return Forest.from_records(
        [
            {"schema": "gxpo.rollouts/1", "group": g, "id": str(i), "prompt": [1], "turns": [{"action": [2]}],
             "reward": None if right is None else float(right), "success": right, "rewards": {name: value},
             "compared": rest[0] if rest else True}
            for i, (g, right, value, *rest) in enumerate(rows)
        ]
    )  # fmt: skip


def tiers(score, thresholds, values):
    """Of failures with this progress."""
    wrong = torch.zeros(len(score), dtype=torch.bool)
    return tiered(wrong, lambda name: score, thresholds=thresholds, values=values)


def test_a_tier_begins_at_its_threshold():
    score = torch.tensor([0.0, 0.2499, 0.25, 0.4999, 0.5, 0.75, 1.0, nan])
    actual = tiers(score, [0.25, 0.5, 0.75], [0.1, 0.25, 0.5]).tolist()
    assert actual[:7] == pytest.approx([0, 0, 0.1, 0.1, 0.25, 0.5, 0.5]) and actual[7] != actual[7]


@given(UNIT, UNIT, st.lists(UNIT, min_size=1, max_size=4, unique=True))
def test_it_equals_a_loop_and_more_progress_never_earns_less(s, t, cuts):
    cuts = sorted(c for c in cuts if c > 0) or [0.5]
    values = [(k + 1) ** 2 / 30 for k in range(len(cuts))]
    expected = [max([v for c, v in zip(cuts, values, strict=True) if x >= c], default=0.0) for x in (s, t)]
    actual = tiers(torch.tensor([s, t], dtype=torch.float64), cuts, values).tolist()
    assert actual == pytest.approx(expected)
    assert (actual[0] <= actual[1]) if s <= t else (actual[0] >= actual[1])


def test_verdict_and_tier_add_up_and_what_is_unknown_is_not_zero():
    rows = [(True, 0.1), (False, 1.0), (False, 0.3), (False, None), (None, 1.0), (True, None), (True, 0.6), (True, 1.0)]
    actual, flat, less = (
        Tiered(**fields)(grown([("g", *row) for row in rows])) for fields in ({}, {"solved": "flat"}, {"alpha": 0.4})
    )
    at = [0, 1, 2, 5, 6, 7]
    assert actual[at].tolist() == [1.0, 0.5, 0.1, 1.0, 1.25, 1.5] and bool(actual[[3, 4]].isnan().all())
    assert flat[at].tolist() == [1.0, 0.5, 0.1, 1.0, 1.0, 1.0] and bool(flat[[3, 4]].isnan().all())
    assert less[at].tolist() == pytest.approx([1.0, 0.2, 0.04, 1.0, 1.1, 1.2])


@given(st.lists(st.tuples(st.booleans(), UNIT), min_size=2, max_size=6), st.floats(0.01, 1))
def test_any_success_is_worth_more_than_any_failure(rows, alpha):
    actual = Tiered(alpha=alpha)(grown([("g", *row) for row in rows])).tolist()
    best = max((x for x, (right, _) in zip(actual, rows, strict=True) if not right), default=0.0)
    least = min((x for x, (right, _) in zip(actual, rows, strict=True) if right), default=1.0)
    assert best < least


def test_all_wrong_groups_are_told_apart_by_the_method():
    m = gxpo.method("ssl_sweet_spot", {"reward.shape.tiered.component": "near"})
    forest = grown([("g", False, 0.9), ("g", False, 0.6), ("g", False, 0.1)], "near")
    assert bool((gxpo.method("grpo").advantages(forest) == 0).all())
    best, middle, worst = m.advantages(m.shaped(forest)).tolist()
    assert best > middle > worst and best - middle == pytest.approx(middle - worst)  # .5, .25, 0


def test_refusals():
    forest = grown([("g", False, 0.9)])
    with pytest.raises(ConfigError, match=r"tiered reads component 'near', which no reward .*there is progress"):
        Tiered(component="near")(forest)
    with pytest.raises(ConfigError, match="between 0 and 1"):
        Tiered()(grown([("g", False, 1.5)]))
    with pytest.raises(ConfigError, match="needs verdicts"):
        Tiered()(forest.replace(success=torch.tensor([nan], dtype=torch.float64)))
    for wrong, why in (
        ({"thresholds": [0.5]}, "as many values"),
        ({"thresholds": [0.5, 0.25, 0.75]}, "must rise"),
        ({"thresholds": [0.0, 0.5, 0.75]}, "above 0"),
        ({"thresholds": [0.5, 0.75, 1.1]}, "up to 1"),
        ({"values": [0.1, 0.5, 0.6]}, "do not shrink"),
        ({"values": [0.2, 0.4, 0.9]}, "do not shrink"),
        ({"values": [0.2, 0.2, 0.5]}, "must rise"),
        ({"alpha": 0.0}, r"alpha is 0\.0; it is above 0"),
        ({"alpha": 1.5}, r"alpha is 1\.5; it is above 0"),
        ({"solved": "best"}, "tiered.solved is .best.; it is one of "),
    ):
        with pytest.raises(ConfigError, match=why):
            Tiered(**wrong)
    tiered_method = gxpo.method("ssl_sweet_spot", {"reward.shape.tiered.values": [0.01, 0.02, 0.2]})
    assert tiered_method.shapes["tiered"].options["values"] == (0.01, 0.02, 0.2)


Rescaled = shape("rescaled")


@given(st.lists(st.floats(-1, 2), min_size=1), st.floats(0, 0.5), st.floats(0.6, 1))
def test_it_equals_a_loop_and_keeps_the_order(values, low, high):
    x = torch.tensor(values, dtype=torch.float64)
    actual = rescaled(x, lambda name, share: x, low=low, high=high).tolist()
    assert actual == pytest.approx([min(1.0, max(0.0, (v - low) / (high - low))) for v in values])
    assert [x for _, x in sorted(zip(values, actual, strict=True))] == sorted(actual)


def test_the_component_takes_its_own_place_in_the_outcome():
    # outcomes 1 0 1 0 of which .6, .3, .9 are the overlap: + (.75 - .6), + (0 - .3), + (1 - .9); the last has none
    forest = grown([("g", True, 0.6), ("g", False, 0.3), ("g", True, 0.9), ("g", False, None)], "iou")
    actual = Rescaled(low=0.3, high=0.7)(forest)
    assert actual.tolist() == pytest.approx([1.15, -0.3, 1.1, 0.0])
    assert Rescaled()(forest).tolist() == forest.outcome.tolist()  # 0 and 1 change nothing


def test_rescaled_refusals():
    with pytest.raises(ConfigError, match="rescaled reads component 'iou', which no reward computes"):
        Rescaled()(grown([("g", True, 0.6)]))
    with pytest.raises(ConfigError, match=r"low .* must be below high"):
        Rescaled(low=1.0)
    assert bool(Rescaled(low=-1.0)(grown([("g", None, 0.6)], "iou")).isnan())


SoftThreshold = shape("soft_threshold")


def column(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_the_cards_numbers():
    # .8 + .01 ln 1.2 = .801823; .8 - (e^.3 - 1) / (e - 1) = .596390; .8 - (e^.8 - 1) / (e - 1) = .086764
    actual = soft_threshold(column(1, 0.9, 0.8, 0.5, 0.2, 0))
    assert actual.tolist() == pytest.approx([0.801823, 0.800953, 0.8, 0.596390, 0.321546, 0.086764], abs=1e-6)


@given(st.floats(-1, 2), st.floats(0.1, 0.9), st.floats(0.001, 1), st.floats(0.1, 3))
def test_it_equals_the_formula(r, tau, above, below):
    actual = float(soft_threshold(column(r), threshold=tau, above=above, below=below))
    if r >= tau:
        expected = tau + above * math.log(r - tau + 1)
    else:
        expected = tau - (math.exp(below * (tau - r)) - 1) / (math.exp(below) - 1)
    assert actual == pytest.approx(expected, abs=1e-12)


def test_it_increases_is_continuous_and_keeps_what_is_unscored():
    x = torch.linspace(0, 1, 1001).double()
    y = soft_threshold(x)
    assert bool((y.diff() > 0).all()) and float(y.diff().max()) < 0.0015
    assert float(soft_threshold(column(0.8 - 1e-12))) == pytest.approx(0.8, abs=1e-11)
    assert math.isnan(float(soft_threshold(column(math.nan))))


def test_one_excellent_answer_sets_the_others_back_less():
    """Scores .8 .8 .3 1: the lead of 1 over .8 is gone but for a hundredth, and what is left is the failure."""
    records = [
        {"schema": "gxpo.rollouts/1", "group": "g", "id": str(i), "prompt": [1], "turns": [{"action": [2]}],
         "reward": r, "origin": "demonstration" if i == 3 else "policy"}
        for i, r in enumerate((0.8, 0.8, 0.3, 1.0))
    ]  # fmt: skip
    forest = Forest.from_records(records)
    shaped = forest.replace(outcome=SoftThreshold()(forest))
    plain, soft = (gxpo.method("grpo").advantages(f).tolist() for f in (forest, shaped))
    assert soft[0] > 1.9 * plain[0] > 0 and soft[2] < plain[2] < 0 and 0 < soft[3] < plain[3]


def test_tempsamp_r1_has_a_reference_answer_and_a_soft_threshold():
    m = gxpo.method("tempsamp_r1")
    assert m.shapes["soft_threshold"] == SoftThreshold() and m.rollout.references == 1
    with pytest.raises(ConfigError, match="it is above 0"):
        SoftThreshold(above=0.0)


ProcessBonus = shape("process_bonus")


def with_bonus(outcome: torch.Tensor, process: torch.Tensor) -> torch.Tensor:
    return process_bonus(outcome, lambda name: process)


def test_right_with_two_useful_chunks_of_four_and_wrong() -> None:
    # 1 * (1 + 2/4) = 1.5; 0 * (1 + 3/4) = 0
    assert with_bonus(column(1, 0), column(2 / 4, 3 / 4)).tolist() == [1.5, 0.0]


def test_unknown_process_reward_unscores_successes_alone() -> None:
    assert with_bonus(column(0, 1, nan), column(nan, nan, 0.5)).isnan().tolist() == [
        False,
        True,
        True,
    ]


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.floats(0, 1)), min_size=1))
def test_it_never_orders_a_failure_above_a_success(rows: list[tuple[float, float]]) -> None:
    actual = with_bonus(column(*(r for r, _ in rows)), column(*(p for _, p in rows))).tolist()
    for (right, process), reward in zip(rows, actual, strict=True):
        assert right <= reward <= 2 * right and reward == pytest.approx(right + right * process)


def test_the_part_reads_its_component_and_names_what_is_missing() -> None:
    forest = random_forest(3)
    n = forest.n_trajectories
    ones = torch.ones(n, dtype=torch.float64)
    scored = forest.with_rewards(ones, components={"correct": ones, "process": 0.25 * ones})
    assert ProcessBonus()(scored).tolist() == [1.25] * n
    with pytest.raises(ConfigError, match=r"'useful', which no reward computes.*\(there is correct, process\)"):
        ProcessBonus(component="useful")(scored)
    with pytest.raises(ConfigError, match="between 0 and 1"):
        ProcessBonus()(forest.with_rewards(ones, components={"process": 2 * ones}))


def test_process_bonus_is_in_search_r2_at_paper_alone() -> None:
    assert gxpo.method("search_r2@paper").shapes == {"process": ProcessBonus()}
    assert gxpo.method("search_r2").shapes == {}


EntityMatch = shape("entity_match")

ROWS = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from([True, False, False, None]), st.floats(0, 1), st.booleans()),
    min_size=1,
    max_size=9,
)


def test_card_numbers() -> None:
    """Rates [.8, .8, .4], the first right, a = .3: R = [1, .3, .15]; z [1.138811, -.404094, -.734717]."""
    right = torch.tensor([True, False, False])
    rate, one = torch.tensor([0.8, 0.8, 0.4], dtype=torch.float64), torch.zeros(3, dtype=torch.int64)
    actual = entity_match(right, lambda name: rate, one > 0, one, one == 0)
    assert actual.tolist() == pytest.approx([1.0, 0.3, 0.15])
    forest = grown([("a", True, 0.8), ("a", False, 0.8), ("a", False, 0.4)], "entities")
    m = gxpo.method("e_grpo")
    credit = m.advantages(m.shaped(forest))
    assert credit.tolist() == pytest.approx([1.138811, -0.404094, -0.734717], abs=1e-6)


def test_entities_in_a_text() -> None:
    assert mentioned("born in NEW\n york, then Oslo", ["New York", "Oslo", "Rome", "york, then"]) == 0.75
    assert math.isnan(mentioned("anything", []))


@given(ROWS, st.sampled_from([0.0, 0.3, 0.9]))
def test_it_equals_a_loop(rows, most) -> None:
    actual = EntityMatch(component="progress", max_reward=most)(grown(rows)).tolist()
    for (g, right, rate, _), r in zip(rows, actual, strict=True):
        if right is None:
            assert math.isnan(r)
            continue
        top = max((x for h, w, x, c in rows if h == g and c and w is not None), default=0.0)
        expected = 1.0 if right else (most * min(1.0, rate / top) if top else 0.0)
        assert r == pytest.approx(expected) and (right or r < 1)


def test_nothing_for_near_misses_leaves_the_verdict() -> None:
    forest = grown([("a", True, 0.5), ("a", False, 1.0), ("b", False, 0.0)], "entities")
    assert EntityMatch(max_reward=0.0)(forest).tolist() == [1.0, 0.0, 0.0]


def test_truncated_attempts_earn_zero_and_unknown_rates_none() -> None:
    forest = grown([("a", False, 0.5), ("a", True, 0.5), ("a", False, None), ("a", True, None)], "entities")
    forest = forest.replace(truncated=torch.tensor([True, True, False, False]))
    actual = EntityMatch()(forest)
    assert actual[[0, 1, 3]].tolist() == [0.0, 1.0, 1.0] and math.isnan(actual[2])


def test_the_built_in_reward_reads_the_tasks_entities() -> None:
    forest = Forest.from_records(
        [
            {"schema": "gxpo.rollouts/1", "group": t, "task": t, "id": t, "prompt": [1], "turns": [{"action": [2]}]}
            for t in ("a", "b")
        ]
    )
    tasks = [Task("a", "?", info={"entities": ["Rome", "Oslo"]}), Task("b", "?")]
    actual = Entities()(forest, ["from rome", "from rome"], tasks)["entities"]
    assert float(actual[0]) == 0.5 and math.isnan(actual[1])
    source = Source(lambda text, task: {"correct": float("rome" in text)}, trusted=True)
    with RewardSet.make({"correct": 1.0}, source=source) as rewards:
        scored = rewards.score(forest, ["from rome", "no"], tasks)
    columns = {"correct": scored.components[:, 0], "entities": torch.tensor([0.5, 0.0], dtype=torch.float64)}
    assert EntityMatch()(scored.with_rewards(scored.outcome, components=columns)).tolist() == [1.0, 0.0]


def test_entity_match_refusals() -> None:
    with pytest.raises(ConfigError, match="entity_match reads component 'entities'"):
        EntityMatch()(grown([("a", False, 0.5)]))
    for most in (1.0, -0.1):
        with pytest.raises(ConfigError, match="entity_match"):
            EntityMatch(max_reward=most)


CorrectPrefix = shape("correct_prefix")


def test_correct_prefix_the_cards_numbers():
    share, none = torch.tensor([0.2, 0.8]), torch.zeros(2, dtype=torch.int64)
    actual = correct_prefix(none > 0, lambda name: share, none, none == 0)
    assert actual.tolist() == pytest.approx(
        [0.182426, 0.817574], abs=1e-6
    )  # rising: the longer right prefix earns more


@given(ROWS, st.sampled_from(["all_wrong", "all"]))
def test_correct_prefix_it_equals_a_loop(rows, groups):
    part = CorrectPrefix(component="progress", groups=groups, steepness=3.0, midpoint=0.4, max_reward=0.8)
    actual = part(grown(rows)).tolist()
    for (g, right, share, _), r in zip(rows, actual, strict=True):
        if right is None:
            assert math.isnan(r)
            continue
        solved = any(h == g and w and c for h, w, _, c in rows)
        partial = 0.8 / (1 + math.exp(-3 * (share - 0.4)))
        expected = 1.0 if right else 0.0 if solved and groups == "all_wrong" else partial
        assert r == pytest.approx(expected) and (right or r < 1)


def test_an_unknown_share_matters_only_where_it_is_read():
    forest = grown([("a", True, None), ("a", False, None), ("b", False, None), ("b", False, 1.0)], "correct_prefix")
    actual = CorrectPrefix()(forest)
    assert actual[[0, 1]].tolist() == [1.0, 0.0] and math.isnan(actual[2])
    assert float(actual[3]) == pytest.approx(1 / (1 + math.exp(-2.5)))
    assert bool(CorrectPrefix(groups="all")(forest)[[1, 2]].isnan().all())


def test_spectral_po_learns_from_all_wrong_groups_else_as_grpo():
    m = gxpo.method("spectral_po")
    forest = grown([("a", False, 0.0), ("a", False, 0.5), ("b", False, 0.9), ("b", True, 1.0)], "correct_prefix")
    credit, grpo = m.advantages(m.shaped(forest)), gxpo.method("grpo").advantages(forest)
    assert float(credit[0]) < 0 < float(credit[1]) and grpo[:2].tolist() == [0.0, 0.0]
    assert torch.equal(credit[2:], grpo[2:])


def test_correct_prefix_refusals():
    forest = grown([("a", False, 0.5)])
    with pytest.raises(ConfigError, match="correct_prefix reads component 'correct_prefix', which no reward computes"):
        CorrectPrefix()(forest)
    for wrong in ({"groups": "none"}, {"steepness": 0.0}, {"max_reward": 1.5}, {"max_reward": 0.0}):
        with pytest.raises(ConfigError, match="correct_prefix"):
            CorrectPrefix(**wrong)  # type: ignore[arg-type]  # that is what is tested


# ---------------------------------------------------------------- factors
def shaped(function, outcome, components, success=None, **options):
    n = len(outcome)
    forest = gxpo.Forest.from_completions([[1]], [[[k + 2] for k in range(n)]], [outcome])
    columns = {name: torch.tensor(x, dtype=torch.float64) for name, x in components.items()}
    verdict = torch.tensor(success or outcome, dtype=torch.float64)
    forest = forest.with_rewards(forest.outcome, components=columns, success=verdict)
    return gxpo.environments.rewards.Shape(function, options)(forest).tolist()


def test_the_product_of_progress_and_factors():
    one = {"speed": [0.5], "comfort": [0.7], "failed": [0.0]}
    assert shaped("factored", [0.8], one, factors=("speed",), fail="failed") == pytest.approx([0.4])
    assert shaped("factored", [0.8], one, factors=("speed", "comfort"), fail="failed") == pytest.approx([0.28])
    # an infraction at 20 % and one at 80 % of a route: half of each was paid before it; void; less 1 % of the route
    hit = {"speed": [0.5, 0.5], "failed": [1.0, 1.0]}
    for options, paid in (({}, [0.1, 0.4]), ({"kept": 0.0}, [0, 0]), ({"terminal": -0.01}, [0.09, 0.39])):
        actual = shaped("factored", [0.2, 0.8], hit, factors=("speed",), fail="failed", **options)
        assert actual == pytest.approx(paid), options


def test_diversity_is_noise_in_a_group_that_is_all_right():
    diversity = {"match": [0.4, 0.6, 0.5]}
    options = {"component": "match", "weight": 0.1}
    paid = shaped("added_component", [0.9] * 3, diversity, [1.0] * 3, **options)
    assert paid == pytest.approx([0.94, 0.96, 0.95])  # the card's, of which standardising makes -1, 1, 0
    forest = gxpo.Forest.from_completions([[1]], [[[2], [3], [4]]], [paid])
    assert gxpo.method("grpo").advantages(forest).tolist() == pytest.approx([-0.9999, 0.9999, 0.0], abs=1e-4)
    assert shaped("added_component", [0.9] * 3, diversity, [1.0] * 3, groups="mixed", **options) == [0.9] * 3
    mixed = shaped("added_component", [0.9, 0.9, 0.0], diversity, [1.0, 1.0, 0.0], groups="mixed", **options)
    assert mixed == pytest.approx([0.94, 0.96, 0.05])
