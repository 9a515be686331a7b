"""Baselines from rollouts beside a group, and from a task's history."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.sampling.rollouts.resumed import check_resumed

import gxpo
from gxpo.algorithms.signals.baselines import TaskMean, measured_baseline, rollout_baseline
from gxpo.base.errors import CheckpointError, ConfigError
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
    actual = RolloutBaseline(paired=paired).compute(grown(rows), {}, TOOLS)["baseline"].tolist()
    for i, (g, r, origin) in enumerate(rows):
        own_value = 0.0 if r is None else r
        if origin == "baseline":
            assert actual[i] == own_value
            continue
        baseline_rows = [q for h, q, o in rows if h == g and o == "baseline"]
        if paired:
            place = sum(h == g and o == "policy" for h, _, o in rows[:i])
            baseline_rows = baseline_rows[place : place + 1]
        known_values = [q for q in baseline_rows if q is not None]
        assert actual[i] == pytest.approx(sum(known_values) / len(known_values) if known_values else own_value)


def test_what_an_earlier_step_measured_goes_first() -> None:
    rows = [("a", 1.0, "policy"), ("a", 0.0, "policy"), ("a", 1.0, "baseline"), ("b", 1.0, "policy")]
    forest = grown(rows, {0: {"baseline": 0.25}, 3: {"baseline": 0.75}})
    assert RolloutBaseline().compute(forest, {}, TOOLS)["baseline"].tolist() == [0.25, 1.0, 1.0, 0.75]


def test_rows_of_no_group_and_of_none_at_all() -> None:
    outcome = torch.tensor([1.0, math.nan])
    actual = measured_baseline(outcome, torch.tensor([-1, -1]), torch.tensor([False, True]), paired=True)
    assert actual.tolist() == [1.0, 0.0]
    empty = torch.zeros(0)
    assert measured_baseline(empty, empty.long(), empty.bool(), paired=True).tolist() == []


TASK_TOOLS: Any = None  # it uses none


def tasks_grown(rows: list[tuple[str, float | None, str]]) -> Forest:
    """(task, outcome, origin), a group a task."""
    return Forest.from_records(
        [
            {"schema": "gxpo.rollouts/1", "group": f"s1/{task}", "task": task, "id": str(i), "prompt": [1],
             "turns": [{"action": [2]}], "reward": r, "origin": origin, "compared": origin != "baseline"}
            for i, (task, r, origin) in enumerate(rows)
        ]
    )  # fmt: skip


def predictions(part: TaskMean, forest: Forest) -> list[float]:
    return part.compute(forest, {}, TASK_TOOLS)["baseline"].tolist()


def test_worked_numbers() -> None:
    part, forest = TaskMean(discount=0.5, prior=1.0), tasks_grown([("a", r, "policy") for r in (1.0, 0.0, 0.0, 1.0)])
    assert all(map(math.isnan, predictions(part, forest)))
    assert part.learn(forest, {}, TASK_TOOLS) == {}  # no prediction yet
    # s = 2 of 4; m = 2 / 4: (2 + .5) / 5 = .5; another task is predicted to be like it
    both = tasks_grown([("a", 1.0, "policy"), ("b", 0.0, "policy"), ("a", 1.0, "policy"), ("b", 0.0, "policy")])
    assert predictions(part, both) == pytest.approx([0.5] * 4)
    figures = part.learn(both, {}, TASK_TOOLS)
    assert figures == {"baseline_error": pytest.approx(0.25), "group_mean_error": 0.0}
    # a: s = .5 * 2 + 2 = 3, n = .5 * 4 + 2 = 4; b: 0 of 2; m = 3 / 6: (3 + .5) / 5 = .7, .5 / 3
    assert predictions(part, both) == pytest.approx([0.7, 1 / 6] * 2)


def test_it_equals_a_loop_and_no_outcome_of_the_step_is_in_it() -> None:
    rng, part, past = random.Random(3), TaskMean(discount=0.7, prior=2.0), {}
    origins = ("policy", "policy", "replay", "baseline")
    for _ in range(6):
        rows = [(rng.choice("abc"), rng.choice((None, 0.0, 0.25, 1.0)), rng.choice(origins)) for _ in range(9)]
        forest = tasks_grown(rows)
        actual = predictions(part, forest)
        flipped = forest.replace(outcome=1 - forest.outcome)
        assert predictions(part, flipped) == pytest.approx(actual, nan_ok=True)
        n_all = sum(0.7 ** (len(v) - 1 - k) * len(x) for v in past.values() for k, x in enumerate(v))
        s_all = sum(0.7 ** (len(v) - 1 - k) * sum(x) for v in past.values() for k, x in enumerate(v))
        for value, (task, *_) in zip(actual, rows, strict=True):
            visits = past.get(task, [])
            s = sum(0.7 ** (len(visits) - 1 - k) * sum(x) for k, x in enumerate(visits))
            n = sum(0.7 ** (len(visits) - 1 - k) * len(x) for k, x in enumerate(visits))
            expected = (s + 2 * s_all / n_all) / (n + 2) if n_all else math.nan
            assert value == pytest.approx(expected, nan_ok=True)
        part.learn(forest, {}, TASK_TOOLS)
        for task in {t for t, r, o in rows if r is not None and o == "policy"}:
            past.setdefault(task, []).append([r for t, r, o in rows if t == task and r is not None and o == "policy"])


def test_restored_means_predict_alike_and_share_no_memory() -> None:
    part, other = TaskMean(), TaskMean()
    forest = tasks_grown([(t, random.Random(i).random(), "policy") for i, t in enumerate("abcab")])
    part.learn(forest, {}, TASK_TOOLS)
    assert part == other and not other.memory.rows and "memory" not in repr(part)
    other.load_state_dict(json.loads(json.dumps(part.state_dict())))
    for _ in range(2):
        assert predictions(part, forest) == predictions(other, forest)
        assert part.learn(forest, {}, TASK_TOOLS) == other.learn(forest, {}, TASK_TOOLS)
    with pytest.raises(CheckpointError, match="task_mean"):
        other.load_state_dict({"rows": {}})


@pytest.mark.parametrize("wrong", [{"discount": 1.5}, {"discount": -0.1}, {"prior": -0.1}, {"window": 0}])
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="task_mean"):
        TaskMean(**wrong)


def test_nothing_seen_is_a_step_of_the_plain_mean() -> None:
    forest = tasks_grown([("a", 1.0, "policy"), ("a", 0.0, "policy"), ("b", 1.0, "policy"), ("b", 1.0, "policy")])
    unknown = {"baseline": torch.full((4,), math.nan)}
    plain = gxpo.method("dr_grpo").advantages(forest)
    assert torch.equal(gxpo.method("v05").advantages(forest, unknown), plain)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:reward")
def test_a_run_resumed_from_the_middle_is_the_run_never_stopped(tmp_path: Path) -> None:
    rows = check_resumed("v05", tmp_path, '"tasks"')
    assert "baseline_error" not in rows[0] and rows[-1]["baseline_error"] >= 0


# ---------------------------------------------------------------- the newest outcomes alone
def stepped(part: TaskMean, forest: Forest) -> list[float]:
    actual = predictions(part, forest)
    part.learn(forest, {}, TASK_TOOLS)
    return actual


def test_a_window() -> None:
    """Window 3. Nothing is known of a task before it was seen; then the newest three of it, the step's own not among
    them: (1 + 0) / 2, then of [1, 0, 1, 1] the last three."""
    part = TaskMean(prior=0.0, window=3)
    assert all(math.isnan(x) for x in stepped(part, tasks_grown([("a", 1.0, "policy"), ("a", 0.0, "policy")])))
    actual = stepped(part, tasks_grown([("a", 1.0, "policy"), ("b", 0.5, "policy"), ("a", 1.0, "policy")]))
    assert actual[0] == actual[2] == 0.5 and math.isnan(actual[1])
    actual = stepped(part, tasks_grown([("b", 0.0, "policy"), ("a", 0.0, "policy")]))
    assert actual == pytest.approx([0.5, 2 / 3])
    assert part.memory.rows == {"a": [1.0, 1.0, 0.0], "b": [0.5, 0.0]}


def test_only_compared_rollouts_of_the_policy_are_stored() -> None:
    part = TaskMean(prior=0.0, window=20)
    rows = [("a", 1.0, "policy"), ("a", 0.0, "replay"), ("a", None, "policy"), ("a", 0.25, "baseline")]
    part.learn(tasks_grown(rows), {}, TASK_TOOLS)
    assert part.memory.rows == {"a": [1.0]}


def test_a_window_read_back_goes_on_exactly() -> None:
    first, second = TaskMean(prior=0.0, window=2), TaskMean(prior=0.0, window=2)
    stepped(first, tasks_grown([("a", 1.0, "policy"), ("b", 1 / 3, "policy")]))
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for rows in ([("a", 0.1, "policy"), ("b", 0.7, "policy")], [("a", 0.2, "policy"), ("a", 0.3, "policy")]):
        assert stepped(first, tasks_grown(rows)) == stepped(second, tasks_grown(rows))
    assert first.state_dict() == second.state_dict()
