"""Partial credit by entities."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.environments.rewards.scored_tasks import Source
from tests.environments.rewards.shapes import shape
from tests.environments.rewards.test_tiered import grown

import gxpo
from gxpo.base.errors import ConfigError
from gxpo.environments.rewards import RewardSet
from gxpo.environments.rewards.built_in import Entities, mentioned
from gxpo.environments.rewards.outcomes import entity_match
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Task

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
    found = entity_match(right, lambda name: rate, one > 0, one, one == 0)
    assert found.tolist() == pytest.approx([1.0, 0.3, 0.15])
    forest = grown([("a", True, 0.8), ("a", False, 0.8), ("a", False, 0.4)], "entities")
    m = gxpo.method("e_grpo")
    credit = m.advantages(m.shaped(forest))
    assert credit.tolist() == pytest.approx([1.138811, -0.404094, -0.734717], abs=1e-6)


def test_entities_in_a_text() -> None:
    assert mentioned("born in NEW\n york, then Oslo", ["New York", "Oslo", "Rome", "york, then"]) == 0.75
    assert math.isnan(mentioned("anything", []))


@given(ROWS, st.sampled_from([0.0, 0.3, 0.9]))
def test_it_equals_a_loop(rows, most) -> None:
    found = EntityMatch(component="progress", most=most)(grown(rows)).tolist()
    for (g, right, rate, _), r in zip(rows, found, strict=True):
        if right is None:
            assert math.isnan(r)
            continue
        top = max((x for h, w, x, c in rows if h == g and c and w is not None), default=0.0)
        expected = 1.0 if right else (most * min(1.0, rate / top) if top else 0.0)
        assert r == pytest.approx(expected) and (right or r < 1)


def test_nothing_for_near_misses_leaves_the_verdict() -> None:
    forest = grown([("a", True, 0.5), ("a", False, 1.0), ("b", False, 0.0)], "entities")
    assert EntityMatch(most=0.0)(forest).tolist() == [1.0, 0.0, 0.0]


def test_cut_attempts_earn_nothing_and_unknown_rates_are_unscored() -> None:
    forest = grown([("a", False, 0.5), ("a", True, 0.5), ("a", False, None), ("a", True, None)], "entities")
    forest = forest.replace(truncated=torch.tensor([True, True, False, False]))
    found = EntityMatch()(forest)
    assert found[[0, 1, 3]].tolist() == [0.0, 1.0, 1.0] and math.isnan(found[2])


def test_the_built_in_reward_reads_the_tasks_entities() -> None:
    forest = Forest.from_records(
        [
            {"schema": "gxpo.rollouts/1", "group": t, "task": t, "id": t, "prompt": [1], "turns": [{"action": [2]}]}
            for t in ("a", "b")
        ]
    )
    tasks = [Task("a", "?", info={"entities": ["Rome", "Oslo"]}), Task("b", "?")]
    found = Entities()(forest, ["from rome", "from rome"], tasks)["entities"]
    assert float(found[0]) == 0.5 and math.isnan(found[1])
    source = Source(lambda text, task: {"correct": float("rome" in text)}, trusted=True)
    with RewardSet.make({"correct": 1.0}, source=source) as rewards:
        scored = rewards.score(forest, ["from rome", "no"], tasks)
    columns = {"correct": scored.components[:, 0], "entities": torch.tensor([0.5, 0.0], dtype=torch.float64)}
    assert EntityMatch()(scored.with_rewards(scored.outcome, components=columns)).tolist() == [1.0, 0.0]


def test_refusals() -> None:
    with pytest.raises(ConfigError, match="entity_match reads component 'entities'"):
        EntityMatch()(grown([("a", False, 0.5)]))
    for most in (1.0, -0.1):
        with pytest.raises(ConfigError, match="entity_match"):
            EntityMatch(most=most)
