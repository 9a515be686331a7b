"""Banks of experience: edits, bounds, what an attempt reads, and that held-out tasks leave no trace in them."""

from __future__ import annotations

import math
from typing import Any

import pytest
from tests.sampling.rollouts.acting_session import STEPS, acting, seeded, turns_of
from tests.sampling.rollouts.team_session import AnswerSession, decoded

import gxpo
from gxpo.base.errors import CheckpointError, ConfigError
from gxpo.environments.envs import EnvPool, source
from gxpo.parts.protocols import EpisodeRules, Sampling, Task
from gxpo.sampling.rollouts.bank import Bank, edit, read_operation

ADD, SUB = Task("add", "1+1=", "2"), Task("sub", "3-1=", "2")
PLAIN = {"entry": "{text};", "edit_prompt": "{task}|{right}|{wrong}|{bank}"}


def halves(policy: str, context: str, attempt: int) -> str:
    """Half of the attempts are right; the writer, who reads bars, adds what it reads."""
    return f"ADD: {context.split('|')[0]}" if "|" in context else "23"[attempt % 2]


def grow(rollout: Any, session: AnswerSession, *tasks: Task) -> Any:
    return rollout.grow(session.asked(*tasks), session)


def component(forest: Any, name: str) -> list[float]:
    return forest.components[:, forest.component_names.index(name)].tolist()


def read(session: AnswerSession) -> list[str]:
    return [decoded(request.prompt) for request in session.requests[0]]


# ---------------------------------------------------------------- edits
def test_a_plan_revises_what_a_step_has_added() -> None:
    # E = {G0: a}, add b, modify G0 to A, then merge (G0, C0) to c: {G0: c}
    steps = [{"op": "add", "text": "b"}, {"op": "modify", "id": "G0", "text": "A"}]
    assert edit(["a"], steps) == (["A", "b"], 0)
    assert edit(["a"], steps, [{"op": "merge", "ids": ["G0", "C0"], "text": "c"}]) == (["c"], 0)


@pytest.mark.parametrize(
    "operation",
    [{"op": "modify", "id": "G7", "text": "x"}, {"op": "add", "text": " "}, {"op": "grow", "text": "x"},
     {"op": "modify", "text": "x"}, {"op": "failed", "text": "no"}],
)  # fmt: skip
def test_an_operation_that_cannot_be_is_counted(operation: Any) -> None:
    assert edit(["a"], [operation]) == (["a"], 1)


def test_the_last_line_of_an_answer_is_the_operation() -> None:
    assert read_operation("ADD: one\nDELETE G1") == {"op": "delete", "ids": ["G1"], "text": ""}
    assert read_operation("I would add nothing") is None


# ---------------------------------------------------------------- the rollout
def test_mixed_groups_alone_are_written_about() -> None:
    # of groups [2, 2], [2, 3], [3, 3] the second alone has a success and a failure: one answer of the writer
    says = {"1+1=": "22", "1+2=": "32", "9-9=": "33"}
    session = AnswerSession(lambda policy, context, attempt: "ADD: x" if "|" in context else says[context][attempt])
    tasks = [Task(str(i), prompt, "2") for i, prompt in enumerate(says)]
    rollout = Bank(2, **PLAIN)
    forest = grow(rollout, session, *tasks)
    assert len(session.requests) == 2 and [decoded(r.prompt) for r in session.requests[1]] == ["1+2=|2|3|"]
    assert rollout.banks["current"] == ["x"]
    assert component(forest, "edits")[2] == 1.0 and sum(map(math.isnan, component(forest, "edits"))) == 5


def test_attempts_read_the_bank_and_are_not_trained() -> None:
    rollout = Bank(2, **PLAIN)
    forest = grow(rollout, AnswerSession(halves), ADD)
    assert component(forest, "experiences") == [0.0, 0.0] and not forest.trainable[forest.path_token].any()
    session = AnswerSession(halves)
    forest = grow(rollout, session, ADD)
    assert read(session) == ["1+1=;1+1="] and component(forest, "experiences") == [1.0, 1.0]
    assert Bank(2, train_attempts=True, **PLAIN).train_attempts


def test_examples_are_right_attempts() -> None:
    rollout = Bank(2, writer="example", entry="{text}\n")
    grow(rollout, AnswerSession(halves), ADD, SUB)
    assert rollout.banks["current"] == ["1+1=2", "3-1=2"]


def test_a_bank_has_a_bound_and_the_oldest_go() -> None:
    rollout = Bank(
        2, writer=lambda contrast: [{"op": "add", "text": f"{contrast.task}{k}"} for k in (1, 2)], max_experiences=3
    )
    for _ in range(2):
        grow(rollout, AnswerSession(halves), ADD)
    assert rollout.banks["current"] == ["1+1=2", "1+1=1", "1+1=2"]


def test_too_long_an_experience_is_refused_and_counted() -> None:
    rollout = Bank(2, writer=lambda contrast: [{"op": "add", "text": "x" * 9}], max_chars=8)
    assert component(grow(rollout, AnswerSession(halves), ADD), "edits")[0] == 0.0 and not rollout.banks["current"]


def test_a_bank_without_a_bound_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"rollout\.max_experiences is 0; it is 1 or more"):
        gxpo.method("training_free_grpo", {"rollout.max_experiences": 0})


@pytest.mark.parametrize("written", ["well", "MODIFY G9: x"])
def test_an_unreadable_edit_costs_that_edit_alone(written: str) -> None:
    rollout = Bank(2, **PLAIN)
    session = AnswerSession(lambda policy, context, attempt: written if "|" in context else "23"[attempt])
    forest = grow(rollout, session, ADD)
    assert (
        component(forest, "edits")[0] == 0.0 and not rollout.banks["current"] and forest.outcome.tolist() == [1.0, 0.0]
    )


def test_a_writer_that_raises_writes_nothing() -> None:
    def writer(contrast: Any) -> Any:
        raise ValueError("no\nidea")

    forest = grow(Bank(2, writer=writer), AnswerSession(halves), ADD)
    assert component(forest, "edits")[0] == 0.0 and "ValueError: no idea" in forest.info[0]["edit"][0]["text"]


def test_operations_that_are_no_mappings_write_nothing() -> None:
    forest = grow(Bank(2, writer=lambda contrast: ["carry the one"]), AnswerSession(halves), ADD)
    assert component(forest, "edits")[0] == 0.0 and forest.info[0]["edit"][0]["op"] == "failed"


def test_a_bank_stands_before_the_first_observation_of_a_world() -> None:
    with EnvPool(source(STEPS, {"start": 2}), workers=0) as steps:
        rollout, say = Bank(2, writer="example", entry="{text};"), lambda context, key: "a?"[key.attempt]
        for step in (1, 2):
            session = acting(steps, say, step=step, rules=EpisodeRules(3), sampling=Sampling(max_new_tokens=8))
            forest = rollout.grow(seeded(session, 4), session)
    example = "2 left\n>a\n1 left\n>\na\n0 left\n>"
    assert rollout.banks["current"] == [example] * 2 and component(forest, "experiences") == [1.0, 1.0]
    assert turns_of(forest, 0)[0]["context"] == f"{example};count\n\n2 left\n>"


def test_what_does_not_fit_beside_a_prompt_is_left_out() -> None:
    rollout = Bank(2, **PLAIN)
    rollout.banks["current"] = ["12345", "abc"]
    session = AnswerSession(halves, max_context=32 + len("abc;1+1="))  # 32 tokens of an action
    grow(rollout, session, ADD)
    assert read(session) == ["abc;1+1="]


def test_an_edit_is_kept_where_it_does_better() -> None:
    for right_with, expected in (("x", ["x"]), ("y", [])):
        session = AnswerSession(
            lambda policy, context, attempt, w=right_with: "2" if w in context or attempt == 0 else "3"
        )
        rollout = Bank(4, writer=lambda contrast: [{"op": "add", "text": "x"}], acceptance="better", entry="{text}")
        grow(rollout, session, ADD)
        assert rollout.banks["current"] == [] and rollout.banks["candidate"] == ["x"]
        grow(rollout, session, ADD)
        assert rollout.banks["current"] == expected


def test_held_out_tasks_are_never_in_a_bank() -> None:
    rollout = Bank(2, writer="example")
    grow(rollout.evaluation(2), AnswerSession(halves), SUB)
    assert rollout.banks["current"] == []
    grow(rollout, AnswerSession(halves), ADD)
    session = AnswerSession(halves)
    grow(rollout.evaluation(2), session, SUB)
    assert read(session) == ["[0] 1+1=2\n3-1="] and rollout.banks["current"] == ["1+1=2"]


def test_a_bank_is_part_of_the_checkpoint() -> None:
    rollout, again = Bank(2), Bank(2)
    rollout.banks["current"] = ["a"]
    again.load_state_dict(rollout.state_dict())
    assert again.banks == {"current": ["a"]}
    with pytest.raises(CheckpointError, match="no bank"):
        again.load_state_dict({"memory": []})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"template": "{prompt}"}, "lacks {bank}"),
        ({"entry": "-"}, "lacks {text}"),
        ({"edit_prompt": "{right}"}, "lacks {task}"),
    ],
)
def test_templates_without_their_places_are_refused(options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Bank(**options)
