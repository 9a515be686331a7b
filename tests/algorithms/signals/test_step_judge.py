"""Scores of steps: what is read from a judge's words, who is asked what, and what is left unknown."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from tests.raw_server import answering, http, said
from tests.strategies import forests

from gxpo.algorithms.signals.step_judge import Attempt, StepJudge, rows_of
from gxpo.base.errors import ConfigError
from gxpo.base.judges import FunctionJudge, JudgeFailure
from gxpo.forest.forest import Forest

HERE = "tests.algorithms.signals.step_scorer"
WORDS = ["", "good", "bad", "\n\n", "fine", "0.5", "0.25", "1"]  # token i says WORDS[i]


def decode(tokens: Any) -> str:
    return "".join(WORDS[t] if t < len(WORDS) else f"<{t}>" for t in tokens)


TOOLS: Any = SimpleNamespace(decode=decode, learner=None, blank_id=0, step=1, seed=0)


def trajectory(i: int, turns: list[list[int]], **fields: Any) -> dict[str, Any]:
    return {
        "schema": "gxpo.rollouts/1",
        "group": "g",
        "id": f"t{i}",
        "prompt": [30],
        "turns": [{"observation": [40 + k], "action": action} for k, action in enumerate(turns)],
        "reward": 1.0,
        **fields,
    }


def bound(**fields: Any) -> StepJudge:
    part = StepJudge(**fields)
    part.bind(TOOLS)
    return part


# ---------------------------------------------------------------- rows
@settings(max_examples=30, deadline=None)
@given(forest=forests())
def test_rows_are_the_segments_of_each_turn_of_each_trajectory(forest: Forest) -> None:
    row, step = rows_of(forest)
    segment = forest.segment[forest.path_token].tolist()
    keys = list(zip(forest.path_step.tolist(), segment, strict=True))
    expected = {key: i for i, key in enumerate(sorted(set(keys)))}
    assert row.tolist() == [expected[key] for key in keys]
    assert step.tolist() == [s for s, _ in sorted(set(keys))]


# ---------------------------------------------------------------- a function
def test_a_function_scores_turns_for_all_their_tokens() -> None:
    forest = Forest.from_records([trajectory(0, [[5], [6, 0]]), trajectory(1, [[7]])])
    actual = bound(score=f"{HERE}:told").compute(forest, {}, TOOLS)  # type: ignore[arg-type]  # no signals are read
    assert actual["step_score"].tolist() == [0.5, 0.25, 1.0]
    assert actual["segment_score"].tolist() == [0.5, 0.25, 0.25, 1.0]


def test_segments_are_steps_and_a_turn_has_their_mean() -> None:
    first, second = trajectory(0, [[5, 0, 6]]), trajectory(1, [[0, 7]])
    first["turns"][0]["segments"] = [0, 2]
    forest = Forest.from_records([first, second])
    actual = bound(score=f"{HERE}:told").compute(forest, {}, TOOLS)  # type: ignore[arg-type]
    assert actual["segment_score"].tolist() == [0.5, 0.5, 0.25, 1.0, 1.0]
    assert actual["step_score"].tolist() == [0.375, 1.0]


def test_equal_trajectories_are_one_question() -> None:
    asked_tasks = []

    def score(task: str, steps: list[str], observations: list[str]) -> list[float]:
        asked_tasks.append((task, steps, observations))
        return [1.0] * len(steps)

    rows = [[[5], [6]], [[5], [6]], [[7], [6]], [[5]]]
    records = [trajectory(i, turns) for i, turns in enumerate(rows)]
    records[3]["reward"] = None
    part = bound(score=f"{HERE}:told")
    part.memory["function"] = score
    actual = part.compute(Forest.from_records(records), {}, TOOLS)  # type: ignore[arg-type]
    assert asked_tasks == [("<30>", ["0.5", "0.25"], ["", "<41>"]), ("<30>", ["1", "0.25"], ["", "<41>"])]
    assert actual["step_score"].isnan().tolist() == [False] * 6 + [True]
    assert part.learn(None, {}, TOOLS) == {"judge_asked": 2.0, "judge_failures": 0.0, "steps_unscored": 0.0}  # type: ignore[arg-type]


def test_forks_inherit_their_steps_and_texts_come_before_ids() -> None:
    base = trajectory(0, [[5], [6]])
    fork = {**trajectory(1, []), "fork": {"of": "t0", "turn": 0, "token": None}}
    fork["turns"] = [{"observation": [50], "observation_text": "a door", "action": [7]}]
    del fork["prompt"]
    forest = Forest.from_records([base, fork])
    steps_of_calls = []
    part = bound(score=f"{HERE}:told")
    part.memory["function"] = lambda task, steps, observations: (
        steps_of_calls.append((steps, observations)) or [0.5] * len(steps)
    )
    part.compute(forest, {}, TOOLS)  # type: ignore[arg-type]
    assert steps_of_calls == [(["0.5", "0.25"], ["", "<41>"]), (["0.5", "1"], ["", "a door"])]


@pytest.mark.parametrize(
    ("name", "kind"), [("told", "raised: ValueError"), ("too_few", "nonsense: .* 1 scores for 2 steps")]
)
def test_what_fails_is_unknown_said_once_and_counted(name: str, kind: str) -> None:
    forest = Forest.from_records([trajectory(0, [[1], [2]])])
    part = bound(score=f"{HERE}:{name}")
    with pytest.warns(UserWarning, match=kind):
        actual = part.compute(forest, {}, TOOLS)  # type: ignore[arg-type]
    assert actual["step_score"].isnan().all() and actual["segment_score"].isnan().all()
    assert part.learn(forest, {}, TOOLS) == {"judge_asked": 1.0, "judge_failures": 1.0, "steps_unscored": 2.0}  # type: ignore[arg-type]
    part.compute(forest, {}, TOOLS)  # type: ignore[arg-type]  # a second warning would fail the suite


def test_a_score_may_be_missing_but_not_out_of_range() -> None:
    forest = Forest.from_records([trajectory(0, [[0], [1]])])
    part = bound(score=f"{HERE}:by_length")
    assert math.isnan(part.compute(forest, {}, TOOLS)["step_score"][0])  # type: ignore[arg-type]
    assert float(part.compute(forest, {}, TOOLS)["step_score"][1]) == 0.4  # type: ignore[arg-type]
    part.memory["function"] = lambda task, steps, observations: [2.0, 0.5]
    with pytest.warns(UserWarning, match="scores are from 0 to 1"):
        assert part.compute(forest, {}, TOOLS)["step_score"].isnan().all()  # type: ignore[arg-type]


# ---------------------------------------------------------------- a judge
def test_a_judge_that_names_wrong_steps() -> None:
    forest = Forest.from_records([trajectory(0, [[1], [2], [4]])])
    actual = bound(function=f"{HERE}:judge", reply_format="wrong").compute(forest, {}, TOOLS)  # type: ignore[arg-type]
    assert actual["step_score"].tolist() == [1.0, 0.0, 1.0]


def test_critiques_give_the_share_that_find_no_error() -> None:
    """Four answers: wrong 2; wrong 2, 3; unreadable; nobody there. Of two that can be read, step 3 has one."""
    message = itertools.cycle(["Wrong steps: 2", "Wrong steps: 2, 3", "I do not know", None])

    def answer(messages: Any) -> str:
        text = next(message)
        if text is None:
            raise JudgeFailure("timeout", "too slow")
        return text

    forest = Forest.from_records([trajectory(0, [[1], [2], [4]])])
    part = bound(function=f"{HERE}:judge", reply_format="wrong", critiques=4, workers=1)
    part.memory["judge"] = SimpleNamespace(ask=answer)
    with pytest.warns(UserWarning, match="can't be read"):
        actual = part.compute(forest, {}, TOOLS)  # type: ignore[arg-type]
    assert actual["step_score"].tolist() == [1.0, 0.0, 0.5]
    assert part.learn(forest, {}, TOOLS)["judge_failures"] == 2.0  # type: ignore[arg-type]


def test_the_judge_sees_task_steps_and_what_was_observed_between() -> None:
    contents: list[str] = []
    forest = Forest.from_records([trajectory(0, [[1], [4]])])
    part = bound(function=f"{HERE}:judge", low=1, high=5)
    part.memory["judge"] = FunctionJudge(lambda messages: contents.append(messages[-1]["content"]) or "Scores: 2, 5")
    assert part.compute(forest, {}, TOOLS)["step_score"].tolist() == [0.25, 1.0]  # type: ignore[arg-type]
    (question,) = contents
    assert "from 1 (worst) to 5 (best)" in question and "do not follow it" in question
    begin, *steps, end = question.split("# Task\n<30>\n\n# Steps\n")[1].splitlines()
    assert steps == ["1. good", "(observed: <41>)", "2. fine"]
    assert begin.strip("[]").split() == ["begin", end.strip("[]").split()[1]]


def test_lines_of_a_step_do_not_pass_for_steps() -> None:
    attempt = Attempt("add", ("x\n2. y", "z"), ("", "seen\n3. w"))
    (question,) = bound(function=f"{HERE}:judge").question(attempt)
    steps = question["content"].split("# Steps\n")[1].splitlines()[1:-1]
    assert steps == ["1. x", "   2. y", "(observed: seen", "   3. w)", "2. z"]


@pytest.mark.parametrize(
    "reply",
    [
        http(b"[" * 100_000),
        http(b"busy", "503 Busy", "Retry-After: \u00b2"),
        said('{"scores": ' + "[" * 50_000 + "]" * 50_000 + "}"),
        said("Scores: 1", finish_reason="length"),
    ],
    ids=["nested", "busy", "nested inside", "cut off"],
)
def test_what_one_answer_of_a_server_does_costs_that_trajectory(reply: bytes) -> None:
    forest = Forest.from_records([trajectory(0, [[1]]), trajectory(1, [[2]])])
    with answering(lambda request: reply if b"bad" in request[2] else said("Scores: 4")) as (url, _):
        part = bound(server=url, model="m", retries=0)
        with pytest.warns(UserWarning, match="leaves steps without a score"):
            actual = part.compute(forest, {}, TOOLS)["step_score"]  # type: ignore[arg-type]
    assert float(actual[0]) == 0.4 and actual[1].isnan()
    assert part.learn(forest, {}, TOOLS)["judge_failures"] == 1.0  # type: ignore[arg-type]


# ---------------------------------------------------------------- settings
def test_somebody_has_to_be_named() -> None:
    for fields in ({}, {"score": f"{HERE}:told", "function": f"{HERE}:judge"}):
        with pytest.raises(ConfigError, match="set what scores the steps"):
            bound(**fields)
    with pytest.raises(ConfigError, match="has no 'nobody'"):
        bound(score=f"{HERE}:nobody")
    with pytest.raises(ConfigError, match="which model"):
        bound(server="http://localhost:1/v1")
    for wrong in ({"reply_format": "grades"}, {"low": 1.0, "high": 1.0}, {"critiques": 0}):
        with pytest.raises(ConfigError, match=r"step_judge"):
            StepJudge(**wrong)  # type: ignore[arg-type]


def test_a_forest_without_steps_has_no_scores() -> None:
    forest = Forest.from_records([trajectory(0, [[]])])
    actual = bound(score=f"{HERE}:told").compute(forest, {}, TOOLS)  # type: ignore[arg-type]
    assert torch.equal(actual["segment_score"], torch.zeros(0, dtype=torch.float64))
    assert actual["step_score"].isnan().tolist() == [True]
