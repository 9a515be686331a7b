"""Critiques of an attempt, what the solver makes of them, and the critic's reward."""

from __future__ import annotations

import math

import pytest
import torch
from tests.sampling.rollouts.team_session import TeamSession, decoded

import gxpo
from gxpo.algorithms.credit.values import hint_worth
from gxpo.base.errors import ConfigError, TaskError
from gxpo.environments.rewards.outcomes import critique_reward, priced_length
from gxpo.parts.protocols import Task
from gxpo.sampling.rollouts.critique import Critique, stated_verdict, states_answer

ADD = Task("add", "1+1=", "2")
OPTIONS = {"template": "{prompt}{attempt}?", "refine_template": "{prompt}{attempt}!{critique}!"}
CRITIC = {"right_pattern": "yes", "wrong_pattern": "no"}


def say(policy: str, context: str, attempt: int) -> str:
    """The solver says 3, and 2 where it has read a 2 in a critique; the critic of attempt 0 says no, of 1 yes."""
    if policy == "critic":
        assert context == "1+1=3?"
        return ("no, 2", "yes")[attempt]
    return "2" if "!no, 2!" in context else "3"


def components(forest, name):
    return forest.components[:, forest.component_names.index(name)].tolist()


# ---------------------------------------------------------------- the rollout
def test_a_critique_is_paid_by_its_refinements() -> None:
    session = TeamSession(say)
    forest = Critique(2, 2, 3, **OPTIONS, **CRITIC).grow(session.asked(ADD), session)
    assert forest.group == ["s3/add/critic/0"] * 2 + ["s3/add/critic/1"] * 2
    assert forest.agent_names == ("critic",) and forest.policy_names == ("critic",)
    assert [decoded(forest.action(s)) for s in range(4)] == ["no, 2", "no, 2", "yes", "yes"]
    assert forest.outcome.tolist() == [1.0, 1.0, 0.0, 0.0] == components(forest, "refined")
    assert components(forest, "attempt") == [0.0] * 4 and components(forest, "verdict") == [1.0, 1.0, 0.0, 0.0]
    assert forest.info[0] == {"verdict": 0.0, "refinements": ["2", "2", "2"]}
    # two attempts and 2 * 2 * 3 refinements, by the model that the run starts from
    assert session.budget.discarded == 14 and {r.policy for r in session.requests[2]} == {"solver"}


def test_a_trained_solver_learns_from_attempts_and_refinements() -> None:
    session = TeamSession(say)
    rollout = Critique(1, 2, 2, "trained", **OPTIONS, **CRITIC)
    assert rollout.policies == {"critic": "trained", "solver": "trained"}
    forest = rollout.grow(session.asked(ADD), session)
    assert forest.group == [
        "s3/add/critic/0", "s3/add/critic/1", "s3/add", "s3/add",
        "s3/add/critic/0.0/solver", "s3/add/critic/0.0/solver", "s3/add/critic/1.0/solver", "s3/add/critic/1.0/solver",
    ]  # fmt: skip
    assert forest.outcome.tolist() == [1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0] and session.budget.discarded == 0
    assert math.isnan(components(forest, "verdict")[2])
    # critiques are paid by the rule, the solver's own texts by the task
    paid = critique_reward(forest.outcome, lambda name: torch.tensor(components(forest, name)), wrong=-1.0)
    assert paid.tolist() == [1.0, -1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0]


def test_one_policy_can_play_both_roles() -> None:
    rollout = Critique(2, solver="shared", **OPTIONS, right_pattern="3", wrong_pattern="2")
    session = TeamSession(lambda policy, context, attempt: "2")
    forest = rollout.grow(session.asked(ADD), session)
    assert rollout.policies == {"main": "trained"} and forest.policy_names == ("main",)
    assert forest.agent_names == ("critic", "solver")


def test_a_critique_can_be_limited_to_a_few_tokens() -> None:
    limits = []

    class Limited(TeamSession):
        def sample(self, requests, sampling=None):
            limits.append(sampling.max_new_tokens)
            return super().sample(requests, sampling)

    session = Limited(say)
    Critique(1, 1, 1, critic_tokens=2, **OPTIONS, **CRITIC).grow(session.asked(ADD), session)
    assert limits == [32, 2, 32]


def test_an_attempt_that_is_called_right_can_be_kept() -> None:
    session = TeamSession(say)
    forest = Critique(2, 2, 3, refine="wrong", **OPTIONS, **CRITIC).grow(session.asked(ADD), session)
    # attempt 0 is called wrong and refined, attempt 1, which is wrong, too, is called right and stays
    assert forest.outcome.tolist() == [1.0, 1.0, 0.0, 0.0] and forest.info[2]["refinements"] == ["3"]
    assert len(session.requests[2]) == 6 and session.budget.discarded == 2 + 6
    with pytest.raises(ConfigError, match="refines what a critic calls wrong"):
        Critique(refine="wrong", right_pattern="", wrong_pattern="")


def test_held_out_tasks_are_answered_after_a_critique() -> None:
    rollout = Critique(4, 1, 5, "trained", **OPTIONS, **CRITIC).evaluation(2)
    session = TeamSession(say)
    forest = rollout.grow(session.asked(ADD), session)
    assert forest.task == ["add", "add"] and forest.success.tolist() == [1.0, 0.0]
    assert components(forest, "attempt") == [0.0, 0.0]  # before the critique


def test_a_critique_without_a_verdict_is_wrong_and_counted() -> None:
    session = TeamSession(lambda policy, context, attempt: "hm" if policy == "critic" else "2")
    forest = Critique(1, 1, 1, **OPTIONS, **CRITIC).grow(session.asked(ADD), session)
    assert components(forest, "unreadable") == [1.0] and components(forest, "verdict") == [0.0]
    assert forest.info[0]["verdict"] is None and forest.outcome.tolist() == [1.0]


def test_a_critique_of_an_unscored_attempt_is_unscored() -> None:
    session = TeamSession(lambda policy, context, attempt: f"{policy[0]}{attempt}",
                          lambda task, text: math.nan if text == "s1" else 1.0)  # fmt: skip
    forest = Critique(1, 2, 1, **OPTIONS, right_pattern="c", wrong_pattern="no").grow(session.asked(ADD), session)
    assert forest.scored.tolist() == [True, False] and "could not score" in forest.info[1]["failure"]


def test_a_critique_without_room_is_empty() -> None:
    session = TeamSession(say, max_context=32 + len("1+1="))
    forest = Critique(1, 1, 1, **OPTIONS, **CRITIC).grow(session.asked(ADD), session)
    assert forest.lengths().tolist() == [0] and forest.outcome.tolist() == [0.0] and bool(forest.truncated.all())


def test_a_writer_without_an_attempt_reads_the_task() -> None:
    session = TeamSession(lambda policy, context, attempt: "2" if policy == "reader" else context)
    rollout = Critique(2, 0, 1, roles=["writer", "reader"], template="{prompt}", refine_template="{critique}{prompt}")
    forest = rollout.grow(session.asked(ADD), session)
    assert forest.outcome.tolist() == [1.0, 1.0] and "verdict" not in forest.component_names
    assert [decoded(r.prompt) for r in session.requests[1]] == ["1+1=1+1="] * 2
    assert rollout.evaluation(3).grow(session.asked(ADD), session).n_trajectories == 3


def test_the_last_statement_is_the_verdict() -> None:
    stated_verdicts = [stated_verdict(t, "right", "wrong") for t in ("right? No, wrong", "wrong? No, right", "", "hm")]
    assert stated_verdicts == [0.0, 1.0, None, None]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"roles": ["solver", "solver"]}, "neither reads what it wrote itself"),
        ({"roles": ["critic", "main"]}, "name two different roles"),
        ({"template": "{prompt}{critique}"}, "lacks {attempt}"),
        ({"template": "{prompt}{attempt}{critique}"}, "has {critique}"),
        ({"right_pattern": "("}, "no regular expression"),
        ({"solver": "trained", "refine_temperature": 0.0}, "of a frozen solver"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(options, message) -> None:
    with pytest.raises(ConfigError) as error:
        Critique(**options)
    assert message in str(error.value) and "\n" not in str(error.value)


# ---------------------------------------------------------------- hints
HINTS = {
    "roles": ["hinter", "reasoner"], "solver": "trained", "critique": "all_wrong", "leak_check": "answer",
    "right_pattern": "", "wrong_pattern": "", "template": "{prompt}{attempt}?", "refine_template": "{prompt}{critique}",
}  # fmt: skip


def hint(policy: str, context: str, attempt: int) -> str:
    """The reasoner says 2 where it has read "add", else 3; the hinter says "add" of "1+1=" and the answer of "4+4="."""
    if policy == "hinter":
        return "add" if context.startswith("1") else "it is 8"
    return "2" if "add" in context or context.startswith("0") else "3"


def test_only_all_wrong_tasks_get_hints_and_leaks_are_not_read() -> None:
    session = TeamSession(hint)
    three = (ADD, Task("leak", "4+4=", "8"), Task("easy", "0+2=", "2"))
    forest = Critique(2, 2, 3, **HINTS).grow(session.asked(*three), session)
    groups = dict.fromkeys(forest.group)
    # hints of the first failed attempt, for two of three tasks; answers under the hints of one
    assert [g for g in groups if g.endswith("hinter/0")] == ["s3/add/hinter/0", "s3/leak/hinter/0"]
    assert [g for g in groups if g.endswith("reasoner")] == ["s3/add/hinter/0.0/reasoner", "s3/add/hinter/0.1/reasoner"]
    assert components(forest, "leaks")[:4] == [0.0, 0.0, 1.0, 1.0] and forest.outcome.tolist()[:4] == [
        1.0,
        1.0,
        0.0,
        0.0,
    ]
    assert "verdict" not in forest.component_names and forest.success.tolist()[2] == 0.0
    last = forest.info[-1]
    assert last == {"critique": "s3/add/hinter/0/0.1"} and last["critique"] in forest.id


def test_without_an_all_wrong_task_only_attempts_are_trained() -> None:
    session = TeamSession(hint)
    forest = Critique(2, 2, 3, **HINTS).grow(session.asked(Task("easy", "0+2=", "2")), session)
    assert forest.group == ["s3/easy"] * 2 and forest.success.tolist() == [1.0, 1.0]


def test_held_out_tasks_have_no_hints() -> None:
    session = TeamSession(hint)
    forest = Critique(2, 2, 3, **HINTS).evaluation(3).grow(session.asked(ADD), session)
    assert forest.success.tolist() == [0.0] * 3 and forest.agent_names == ("reasoner",) and len(session.requests) == 1


def test_the_reference_solution_is_the_critics_alone() -> None:
    session = TeamSession(hint)
    session.solution = lambda task: "1 and 1 are 2"
    rollout = Critique(1, 1, 1, **{**HINTS, "leak_check": "none", "template": "{prompt}{attempt}!{solution}"})
    rollout.grow(session.asked(ADD), session)
    contexts = [[decoded(r.prompt) for r in requests] for requests in session.requests]
    assert contexts == [["1+1="], ["1+1=3!1 and 1 are 2"], ["1+1=add"]]
    with pytest.raises(TaskError, match="has no reference answer"):
        rollout.check_task(ADD, lambda task: None)


@pytest.mark.parametrize(
    ("text", "answer", "holds"),
    [("it is 25.", "25", True), ("so: 25", "25", True), ("25 apples", "25", False), ("= 250", "25", False),
     ("is 2.25", "25", False), ("1000 units", "100", False), ("about 100.", "100", True), ("Paris!", "paris", True),
     ("add them", "", False)],
)  # fmt: skip
def test_a_hint_holds_the_answer_as_a_whole(text, answer, holds) -> None:
    assert states_answer(text, answer) == holds


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({**HINTS, "solver": "frozen"}, "leaves a step without rollouts"),
        ({**HINTS, "attempts": 0, "template": "{prompt}"}, "leaves a step without rollouts"),
        ({**HINTS, "right_pattern": "yes"}, "two sides of one verdict"),
    ],
)
def test_hints_that_cannot_be_are_refused(options, message) -> None:
    with pytest.raises(ConfigError, match=message):
        Critique(**options)


def test_a_gate_needs_an_answer() -> None:
    with pytest.raises(TaskError, match=r"has no answer that rollout\.leak_check=answer could find"):
        Critique(**HINTS).check_task(Task("a", "?"), lambda task: None)


def worth(right: int, n: int, reliance: float, leaks: float = 0.0) -> float:
    """Worth of a hint with so many right answers of n, each with this reliance where it is right, else with -9."""
    hint = {"schema": "gxpo.rollouts/1", "group": "h", "id": "h/0", "prompt": [1], "turns": [{"action": [2]}],
            "reward": 0.5, "rewards": {"leaks": leaks}, "success": False}  # fmt: skip
    answers = [
        {"schema": "gxpo.rollouts/1", "group": "h/r", "id": f"r/{i}", "prompt": [1], "turns": [{"action": [2]}],
         "reward": float(i < right), "rewards": {}, "success": i < right, "info": {"critique": "h/0"}}
        for i in range(n)
    ]  # fmt: skip
    forest = gxpo.Forest.from_records([hint, *answers])
    values = [math.nan, *(reliance if i < right else -9.0 for i in range(n))]
    value = hint_worth(forest, torch.tensor(values, dtype=torch.float64))
    assert value.tolist()[1:] == [float(i < right) for i in range(n)]
    return round(float(value[0]), 6)


def test_a_hint_is_worth_mixed_answers_that_do_not_rely_on_it() -> None:
    assert worth(2, 8, 0.0) == 0.899872 and worth(2, 8, 0.2) == 0.899872  # 1 - .25^8 - .75^8, and no bonus
    assert worth(2, 8, -0.15) == 0.545800  # times e^(-.15 / .3)
    assert worth(4, 8, -0.6) == 0.134278
    assert worth(0, 8, 0.0) == 0.0 == worth(8, 8, 0.0)
    assert worth(0, 0, 0.0, leaks=1.0) == -0.2 and worth(0, 0, 0.0) == 0.5
    group = [[0.545800, 0.0, -0.2, 0.134278]]
    forest = gxpo.Forest.from_completions([[1]], [[[2], [3], [4], [5]]], group)
    credit = gxpo.method("grpo").advantages(forest)
    assert [round(x, 5) for x in credit.tolist()] == [1.35024, -0.38061, -1.01485, 0.04522]


# ---------------------------------------------------------------- rewards
def columns(verdict, attempt, refined):
    table = {"verdict": verdict, "attempt": attempt, "refined": refined}
    return lambda name: torch.tensor(table[name], dtype=torch.float64)


def test_refcritic_pays_right_verdicts_by_refinements() -> None:
    read = columns([1.0, 0.0, 1.0, 1.0], [0.0] * 4, [0.75, 1.0, 1.0, 0.25])
    reward = critique_reward(torch.zeros(4), read)
    assert reward.tolist() == [0.75, 0.0, 1.0, 0.25]
    forest = gxpo.Forest.from_completions([[1]], [[[2], [3], [4], [5]]], [reward.tolist()])
    credit = gxpo.method("grpo").advantages(forest)
    assert [round(x, 6) for x in credit.tolist()] == [0.547721, -1.095443, 1.095443, -0.547721]
    # the sum: 1 for the verdict and 3 / 4 for refinements of an attempt that was wrong
    assert critique_reward(torch.zeros(1), columns([1.0], [0.0], [0.75]), pays="repair", bonus=1.0).tolist() == [1.75]
    assert critique_reward(torch.zeros(1), columns([0.0], [0.0], [0.75]), pays="repair", bonus=1.0).tolist() == [0.0]


@pytest.mark.parametrize(
    ("pays", "expected"),
    # (attempt, verdict, refinement): wrong called wrong and repaired, not repaired; right called right; called wrong;
    # right called right and spoilt
    [("refined", [1.2, 0.2, 1.2, -1.0, 0.2]), ("gain", [1.2, 0.2, 0.2, -1.0, -0.8]),
     ("corrected", [1.2, 0.2, 0.4, -1.0, 0.2])],
)  # fmt: skip
def test_critique_rl_pays_as_its_code(pays, expected) -> None:
    read = columns([1.0, 1.0, 1.0, 0.0, 1.0], [0.0, 0.0, 1.0, 1.0, 1.0], [1.0, 0.0, 1.0, 1.0, 0.0])
    paid = critique_reward(torch.zeros(5), read, pays=pays, bonus=0.2, wrong=-1.0)
    assert [round(x, 9) for x in paid.tolist()] == expected
    judged = critique_reward(torch.zeros(5), read, bonus=1.0, weight=0.0, wrong=-1.0)  # stage 1
    assert judged.tolist() == [1.0, 1.0, 1.0, -1.0, 1.0]


def test_sentinel_prices_the_length_of_a_prefix() -> None:
    paid = priced_length(torch.tensor([1.0, 0.0, 1.0]), torch.tensor([10, 10, 40]), max_length=20.0)
    assert [round(x, 9) for x in paid.tolist()] == [0.95, 0.0, 0.9]
