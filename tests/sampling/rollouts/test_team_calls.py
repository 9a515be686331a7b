"""Teams with helpers: who is called when, what the caller reads, who is paid, and what is refused."""

from __future__ import annotations

import math

import pytest
import torch
from tests.sampling.rollouts.team_session import TeamSession, decoded
from tests.sampling.rollouts.test_team import scripted, texts

import gxpo
from gxpo.base.errors import ConfigError
from gxpo.parts.protocols import Task
from gxpo.sampling.rollouts.graph import Call, Graph, Role
from gxpo.sampling.rollouts.team import Team
from gxpo.sampling.rollouts.team_joint import TeamJoint, marginal

ADD, SUB = Task("add", "1+1=", "2"), Task("sub", "5-1=", "4")
ASKING = Graph(
    (
        Role("asker", running=True, answer="{asker}", calls=(Call("expert", r"ASK (\d)", max_calls=2),)),
        Role("judge", "J{asker}", local=lambda texts, scores: 5 + scores["outcome"]),
    ),
    helpers=(Role("expert", "E{request}:", local=lambda texts, scores: float(texts["expert"] == "r1")),),
)


def ask(policy: str, context: str, attempt: int) -> str:
    """The asker asks two things at once; attempt 0 asks again beyond its budget, attempt 1 answers."""
    if context.startswith("E"):
        return "r" + context[1]
    if context.startswith("J"):
        return "ok"
    return "ASK 1 ASK 2" if context.endswith("=") else "2" if attempt else "ASK 3!"


# ---------------------------------------------------------------- calls
def test_a_caller_goes_on_with_the_replies_to_its_calls() -> None:
    session = TeamSession(ask)
    forest = Team(2, ASKING).grow(session.asked(ADD), session)
    asked = [("asker", "1+1=", "ASK 1 ASK 2"), ("expert", "E1:", "r1"), ("expert", "E2:", "r2")]
    goes_on = "1+1=ASK 1 ASK 2r1\nr2"
    assert texts(forest, 0) == [*asked, ("asker", goes_on, "ASK 3!"), ("judge", "JASK 3!", "ok")]
    assert texts(forest, 1) == [*asked, ("asker", goes_on, "2"), ("judge", "J2", "ok")]
    assert forest.outcome.tolist() == [0.0, 1.0]


def test_calls_of_all_attempts_are_sampled_at_once() -> None:
    session = TeamSession(ask)
    Team(2, ASKING).grow(session.asked(ADD, SUB), session)
    assert [[decoded(r.prompt)[:2] for r in requests] for requests in session.requests] == [
        ["1+", "1+", "5-", "5-"], ["E1"] * 4, ["E2"] * 4, ["1+", "1+", "5-", "5-"], ["JA", "J2", "JA", "J2"],
    ]  # fmt: skip


def test_a_call_knows_its_caller_and_its_number() -> None:
    session = TeamSession(ask)
    forest = Team(1, ASKING).grow(session.asked(ADD), session)
    action = forest.step_action
    assert forest.caller[action].tolist() == [-1, int(action[0]), int(action[0]), -1, -1]
    assert [info["call"] for info in forest.step_info] == [0, 0, 1, 1, 0]


def test_a_helper_may_call_a_helper() -> None:
    team = Graph(
        (Role("a", answer="{a}", calls=(Call("b", r"B(\d)", max_calls=1),), again="{prompt}{b}"),),
        helpers=(
            Role("b", "b{request}", calls=(Call("c", "C", max_calls=1),), again="b{request}{c}"),
            Role("c", "c{request}"),
        ),
    )
    session = TeamSession(scripted((r"^b1", "C"), (r"^cC", "7"), (r"^1\+1=.", "2"), ("", "B1")))
    said = {"b17": "9"}
    session.script = lambda policy, context, k, first=session.script: said.get(context) or first(policy, context, k)
    forest = Team(1, team).grow(session.asked(ADD), session)
    assert texts(forest, 0) == [("a", "1+1=", "B1"), ("b", "b1", "C"), ("c", "cC", "7"), ("b", "b17", "9"),
                                ("a", "1+1=9", "2")]  # fmt: skip
    action = forest.step_action
    assert forest.caller[action].tolist() == [-1, int(action[0]), int(action[1]), int(action[0]), -1]
    assert team.longest == 1 + 2 + 2


def test_a_call_without_room_ends_that_attempt_alone() -> None:
    long = Graph(
        (Role("a", answer="{a}", calls=(Call("b", "B+", max_calls=1),)),),
        helpers=(Role("b", lambda t: 99 * t["request"]),),
    )
    session = TeamSession(lambda policy, context, k: "7" if "B" in context else ("BB", "2")[k], max_context=100)
    forest = Team(2, long).grow(session.asked(ADD), session)
    assert forest.truncated.tolist() == [True, False] and forest.outcome.tolist() == [0.0, 1.0]


def test_roles_at_once_read_what_the_first_of_them_read() -> None:
    team = Graph((Role("a", "{prompt}{b}"), Role("b", "{prompt}{a}", at_once=True, answer="{b}")))
    session = TeamSession(scripted(("", "2")))
    assert texts(Team(1, team).grow(session.asked(ADD), session), 0) == [("a", "1+1=", "2"), ("b", "1+1=", "2")]


@pytest.mark.parametrize(
    ("role", "helpers", "message"),
    [
        (Role("a", answer="x", calls=(Call("b", "x"),)), (Role("b"),), "calls 'b' without a budget"),
        (Role("a", answer="x", calls=(Call("a", "x", max_calls=1),)), (), "'a' calls itself, so the graph has no end"),
        (Role("a", answer="x", calls=(Call("c", "x", max_calls=1),)), (Role("b"),), "calls 'c', which is no helper"),
        (Role("a", answer="x", calls=(Call("b", "(", max_calls=1),)), (Role("b"),), "is no regular expression"),
        (Role("a", answer="x"), (Role("b"),), "no role calls the helper 'b'"),
        (Role("a", answer="{request}"), (), r"has \{request\}"),
        (Role("a", answer="x", at_once=True), (), "'a' has `at_once`"),
        (Role("a", answer="x", calls=(Call("b", "x", max_calls=1),)), (Role("b", answer="x"),), "helper 'b' has"),
    ],
)
def test_bad_calls_are_refused(role: Role, helpers: tuple[Role, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refusal:
        Graph((role,), helpers=helpers)
    assert "\n" not in str(refusal.value)


def test_helpers_that_call_one_another_are_refused() -> None:
    b, c = (Role(name, calls=(Call(other, "x", max_calls=1),)) for name, other in ("bc", "cb"))
    with pytest.raises(ConfigError, match="helper 'b' may call itself through others, so the graph has no end"):
        Graph((Role("a", answer="x", calls=(Call("b", "x", max_calls=1),)),), helpers=(b, c))


# ---------------------------------------------------------------- rewards of roles
def test_a_role_is_paid_its_own_reward_or_the_outcome() -> None:
    session = TeamSession(ask)
    forest = Team(2, ASKING, reward_scope="role").grow(session.asked(ADD), session)
    # asker: the outcome; the experts: 1 for r1; the judge: 5 + outcome
    assert forest.step_reward.tolist() == [0.0, 1.0, 0.0, 0.0, 5.0, 1.0, 1.0, 0.0, 1.0, 6.0]
    assert forest.outcome.tolist() == [0.0, 1.0]


def test_a_resting_role_is_sampled_from_its_policy_and_not_trained() -> None:
    session = TeamSession(ask)
    part = Team(1, ASKING, "per_role", paused_roles=["asker"])
    forest = part.grow(session.asked(ADD), session)
    assert set(part.policies.values()) == {"trained"} and session.requests[0][0].policy == "asker"
    agents = [forest.agent_names[a] for a in forest.step_agent[forest.path_step[forest.path_trainable]].tolist()]
    assert set(agents) == {"expert", "judge"}
    with pytest.raises(ConfigError, match=r"rollout\.paused_roles: 'judge' is in rollout\.frozen_roles, too"):
        Team(1, ASKING, "per_role", ["judge"], paused_roles=["judge"]).cast  # noqa: B018


def test_a_traitor_is_drawn_for_a_task_and_not_trained() -> None:
    session = TeamSession(ask)
    forest = Team(2, ASKING, traitor_rate=1.0, traitor_prompt="T{prompt}").grow(session.asked(ADD), session)
    traitor = forest.info[0]["traitor"]
    assert forest.info[1]["traitor"] == traitor in ASKING.names
    read = [text for agent, text, _ in texts(forest, 0) if agent == traitor]
    assert read[0].startswith("T")
    trained = forest.step_agent[forest.path_step[forest.path_trainable]]
    assert forest.agent_names.index(traitor) not in trained.tolist()
    clean, attacked = (forest.components[:, forest.component_names.index(x)] for x in ("clean", "attacked"))
    assert clean.isnan().all() and torch.equal(attacked, forest.outcome)


def test_a_trained_traitor_earns_what_the_team_loses() -> None:
    session = TeamSession(ask)
    part = Team(2, ASKING, traitor_rate=1.0, traitor="trained")
    forest = part.grow(session.asked(ADD), session)
    traitor = forest.info[0]["traitor"]
    trained = forest.step_agent[forest.path_step[forest.path_trainable]].tolist()
    assert forest.agent_names.index(traitor) in trained
    names = [forest.agent_names[a] for a in forest.step_agent.tolist()]
    outcome = forest.outcome[forest.step_trajectory].tolist()
    expected = [-o if name == traitor else o for name, o in zip(names, outcome, strict=True)]
    assert forest.step_reward.tolist() == expected and len({*names}) > 1


# ---------------------------------------------------------------- groups of calls
def test_the_kth_calls_of_a_module_are_a_group() -> None:
    # calls [2, 3, 1], scores [1, 0, .5]: the first calls of all three [.5, -.5, 0], the second ones of two [.5, -.5],
    # the third of one alone 0
    team = Graph(
        (Role("lead", answer="{lead}", calls=(Call("m", "M", max_calls=9),), again="end"),), helpers=(Role("m", "m"),)
    )
    say = lambda policy, context, k: "x" if context == "m" else str(k) if context == "end" else "M" * [2, 3, 1][k]  # noqa: E731
    session = TeamSession(say, lambda task, text: [1.0, 0.0, 0.5][int(text)])
    m = gxpo.method("mm_grpo", {"rollout.graph": team, "rollout.group_size": 3, "credit.scale": "none"})
    forest = m.rollout.grow(session.asked(ADD), session)
    advantage, by_call = m.advantages(forest), {}
    for s, info in enumerate(forest.step_info):
        if forest.agent_names[int(forest.step_agent[s])] == "m":
            by_call[int(forest.step_trajectory[s]), info["call"]] = float(advantage[forest.path_step == s][0])
    assert by_call == {(0, 0): 0.5, (1, 0): -0.5, (2, 0): 0.0, (0, 1): 0.5, (1, 1): -0.5, (1, 2): 0.0}


# ---------------------------------------------------------------- joint answers
def test_a_text_is_paid_by_the_joint_answers_that_it_is_part_of() -> None:
    # J = [[1, 0], [0, .5]], rows by the first role's text: means .5 and .25 of either, so advantages .125 and -.125
    team = Graph((Role("a", "A"), Role("b", "B", at_once=True, answer="{a}{b}")))
    reward = {"00": 1.0, "01": 0.0, "10": 0.0, "11": 0.5}
    session = TeamSession(lambda policy, context, k: str(k), lambda task, text: reward[text])
    m = gxpo.method("magrpo", {"rollout.graph": team, "rollout.group_size": 2})
    forest = m.rollout.grow(session.asked(ADD), session)
    assert forest.group == ["s3/add/a", "s3/add/a", "s3/add/b", "s3/add/b"] and len(session.requests) == 1
    assert [float(m.advantages(forest)[forest.path_of(r)][0]) for r in range(4)] == [0.125, -0.125, 0.125, -0.125]


def test_aligned_answers_join_the_kth_texts() -> None:
    team = Graph((Role("a", "A"), Role("b", "B", at_once=True, answer="{a}{b}")))
    session = TeamSession(lambda policy, context, k: str(k), lambda task, text: float(text == "11"))
    forest = TeamJoint(3, team, joint="aligned").grow(session.asked(ADD), session)
    assert forest.outcome.tolist() == [0.0, 1.0, 0.0] * 2 and session.judged == [["00", "11", "22"]]


def test_an_unscored_joint_answer_leaves_its_texts_unscored() -> None:
    value = marginal(torch.tensor([1.0, math.nan]), [(0, 0), (1, 0)], 2, 2)
    assert value[0, 0] == 1.0 and value[0, 1].isnan() and value[1, 0].isnan()


def test_joint_answers_are_of_roles_at_once() -> None:
    with pytest.raises(ConfigError, match="give every role but the first at_once"):
        TeamJoint(2, Graph((Role("a"), Role("b", answer="{b}"))))
