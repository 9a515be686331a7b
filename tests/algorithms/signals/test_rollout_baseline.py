"""Baselines read off the rollouts that stand beside a group."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gxpo.algorithms.signals.baselines import measured_baseline, rollout_baseline
from gxpo.forest.forest import Forest
from gxpo.parts.definition import kind_of

RolloutBaseline = kind_of(rollout_baseline)

TOOLS: Any = None  # it uses none


def grown(rows: list[tuple[str, float | None, str]], info: dict[int, dict[str, Any]] | None = None) -> Forest:
    """(group, outcome, origin)"""
    return Forest.from_records(
        [
            {"schema": "gxpo.rollouts/1", "group": g, "id": str(i), "prompt": [1], "turns": [{"action": [2]}],
             "reward": r, "origin": origin, "compared": origin == "policy", "info": (info or {}).get(i, {})}
            for i, (g, r, origin) in enumerate(rows)
        ]
    )  # fmt: skip


row = st.tuples(st.sampled_from("ab"), st.sampled_from([None, 0.0, 0.5, 1.0]), st.sampled_from(["policy", "baseline"]))


@given(st.lists(row, min_size=1, max_size=10), st.booleans())
def test_it_equals_a_loop(rows: list[tuple[str, float | None, str]], paired: bool) -> None:
    found = RolloutBaseline(paired=paired).compute(grown(rows), {}, TOOLS)["baseline"].tolist()
    for i, (g, r, origin) in enumerate(rows):
        own = 0.0 if r is None else r
        if origin == "baseline":
            assert found[i] == own
            continue
        beside = [q for h, q, o in rows if h == g and o == "baseline"]
        if paired:
            place = sum(h == g and o == "policy" for h, _, o in rows[:i])
            beside = beside[place : place + 1]
        known = [q for q in beside if q is not None]
        assert found[i] == pytest.approx(sum(known) / len(known) if known else own)


def test_what_an_earlier_step_measured_goes_first() -> None:
    rows = [("a", 1.0, "policy"), ("a", 0.0, "policy"), ("a", 1.0, "baseline"), ("b", 1.0, "policy")]
    forest = grown(rows, {0: {"baseline": 0.25}, 3: {"baseline": 0.75}})
    assert RolloutBaseline().compute(forest, {}, TOOLS)["baseline"].tolist() == [0.25, 1.0, 1.0, 0.75]


def test_rows_of_no_group_and_of_none_at_all() -> None:
    outcome = torch.tensor([1.0, math.nan])
    found = measured_baseline(outcome, torch.tensor([-1, -1]), torch.tensor([False, True]), paired=True)
    assert found.tolist() == [1.0, 0.0]
    empty = torch.zeros(0)
    assert measured_baseline(empty, empty.long(), empty.bool(), paired=True).tolist() == []
