"""SSL: tiers of progress beside success."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.environments.rewards.shapes import shape

import gxpo
from gxpo.base.errors import ConfigError
from gxpo.environments.rewards.outcomes import tiered
from gxpo.forest.forest import Forest

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
    found = tiers(score, [0.25, 0.5, 0.75], [0.1, 0.25, 0.5]).tolist()
    assert found[:7] == pytest.approx([0, 0, 0.1, 0.1, 0.25, 0.5, 0.5]) and found[7] != found[7]


@given(UNIT, UNIT, st.lists(UNIT, min_size=1, max_size=4, unique=True))
def test_it_equals_a_loop_and_more_progress_never_earns_less(s, t, cuts):
    cuts = sorted(c for c in cuts if c > 0) or [0.5]
    values = [(k + 1) ** 2 / 30 for k in range(len(cuts))]
    expected = [max([v for c, v in zip(cuts, values, strict=True) if x >= c], default=0.0) for x in (s, t)]
    found = tiers(torch.tensor([s, t], dtype=torch.float64), cuts, values).tolist()
    assert found == pytest.approx(expected)
    assert (found[0] <= found[1]) if s <= t else (found[0] >= found[1])


def test_verdict_and_tier_add_up_and_what_is_unknown_is_not_zero():
    rows = [(True, 0.1), (False, 1.0), (False, 0.3), (False, None), (None, 1.0), (True, None), (True, 0.6), (True, 1.0)]
    found, flat, less = (
        Tiered(**fields)(grown([("g", *row) for row in rows])) for fields in ({}, {"solved": "flat"}, {"alpha": 0.4})
    )
    at = [0, 1, 2, 5, 6, 7]
    assert found[at].tolist() == [1.0, 0.5, 0.1, 1.0, 1.25, 1.5] and bool(found[[3, 4]].isnan().all())
    assert flat[at].tolist() == [1.0, 0.5, 0.1, 1.0, 1.0, 1.0] and bool(flat[[3, 4]].isnan().all())
    assert less[at].tolist() == pytest.approx([1.0, 0.2, 0.04, 1.0, 1.1, 1.2])


@given(st.lists(st.tuples(st.booleans(), UNIT), min_size=2, max_size=6), st.floats(0.01, 1))
def test_any_success_is_worth_more_than_any_failure(rows, alpha):
    found = Tiered(alpha=alpha)(grown([("g", *row) for row in rows])).tolist()
    best = max((x for x, (right, _) in zip(found, rows, strict=True) if not right), default=0.0)
    least = min((x for x, (right, _) in zip(found, rows, strict=True) if right), default=1.0)
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
    given = gxpo.method("ssl_sweet_spot", {"reward.shape.tiered.values": [0.01, 0.02, 0.2]})
    assert given.shapes["tiered"].options["values"] == (0.01, 0.02, 0.2)
