"""Credit over the several contexts of a user's agent: a summarising loop and a handoff, against numbers by hand."""

from __future__ import annotations

import pytest
from tests.sampling.serve.agent_session import TASKS, TOKENIZER, ask, session, user

import gxpo
from gxpo.forest.forest import Forest
from gxpo.sampling.rollouts.agent import AgentEpisodes

SUMMARY = [user("In short: two numbers are to be added. Go on.")]


def summarising(prompt, base_url, api_key, attempt):
    """Two calls, then two that begin with a summary in place of the history; the first attempt is right."""
    for messages in ([user(prompt)], SUMMARY):
        reply = ask(base_url, api_key, messages)
        ask(base_url, api_key, [*messages, reply, user("And?")])
    return float(attempt == 0)


def handing_off(prompt, base_url, api_key, attempt):
    """A triage agent passes the question to an expert with a history of its own, which one attempt asks twice."""
    ask(base_url, api_key, [user(prompt)], model="policy/triage")
    for _ in range(2 - attempt):
        ask(base_url, api_key, [{"role": "system", "content": "Expert."}, user(prompt)], model="policy/expert")
    return float(attempt == 0)


def two_attempts(run) -> Forest:
    """Two attempts at one task whose replies, and so whose histories, differ."""
    rollout_session = session(lambda read, key: f"reply {key.attempt}")
    return AgentEpisodes(run, group_size=2).grow(TASKS[:1], rollout_session)


def step_advantages(forest: Forest, method: str, **keys: object) -> list[list[float]]:
    """Advantage of each step, which is that of all its tokens, by trajectory in order of turns."""
    advantage_P = gxpo.method(method, keys).advantages(forest)
    values: list[dict[int, set[float]]] = [{} for _ in range(forest.n_trajectories)]
    for r, s, a in zip(forest.path_trajectory.tolist(), forest.path_step.tolist(), advantage_P.tolist(), strict=True):
        values[r].setdefault(s, set()).add(a)
    assert all(len(each) == 1 for by_step in values for each in by_step.values())
    return [[each.pop() for _, each in sorted(by_step.items())] for by_step in values]


def test_a_summary_is_a_second_context_of_one_trajectory() -> None:
    forest = two_attempts(summarising)
    assert (forest.n_trajectories, forest.n_steps) == (2, 8)
    assert [info["agent"]["contexts"] for info in forest.info] == [2, 2]
    contexts = [TOKENIZER.decode(forest.context(int(forest.parent[forest.step_nodes(s)[0]]))) for s in range(8)]
    # calls 1 and 3 begin alike in both attempts, 2 and 4 go on from what each attempt wrote
    assert contexts[0] == contexts[4] and contexts[2] == contexts[6]
    assert "What is 1+1?" in contexts[1] and "reply 0" in contexts[1] and "reply 1" in contexts[5]
    assert "What is 1+1?" not in contexts[2] and "In short" in contexts[3] and "reply 0" in contexts[3]


def test_every_context_gets_the_credit_of_the_episode() -> None:
    """Outcomes 1 and 0, less their mean."""
    assert step_advantages(two_attempts(summarising), "dr_grpo") == [[0.5] * 4, [-0.5] * 4]


def test_steps_are_compared_where_contexts_are_equal() -> None:
    """GiGPO without deviations. Calls 1 and 3 are made in equal states: returns .95^3 and .95 of the right attempt, 0
    of the other, less their means; the states of calls 2 and 4 are alone, with 0 in addition to the episode's +-.5."""
    forest = two_attempts(summarising)
    assert step_advantages(forest, "gigpo", **{"credit.scale": "none", "credit.add.state.scale": "none"}) == [
        pytest.approx([0.5 + 0.95**3 / 2, 0.5, 0.5 + 0.95 / 2, 0.5]),
        pytest.approx([-0.5 - 0.95**3 / 2, -0.5, -0.5 - 0.95 / 2, -0.5]),
    ]


def test_a_handoff_is_compared_among_calls_of_the_same_agent() -> None:
    """Dr. MAS without deviations. Triage: outcomes 1, 0. The expert's three calls: 1, 1, 0, whose mean is 2/3."""
    forest = two_attempts(handing_off)
    names = [forest.agent_names[a] for a in forest.step_agent.tolist()]
    assert names == ["triage", "expert", "expert", "triage", "expert"]
    keys = {"credit.group_by": ("agent",), "credit.unit": "step"}
    assert step_advantages(forest, "dr_grpo", **keys) == [
        pytest.approx([1 / 2, 1 / 3, 1 / 3]),
        pytest.approx([-1 / 2, -2 / 3]),
    ]
