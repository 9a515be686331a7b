"""AT-GRPO's groups: which candidates the authors' code compares, and what that gives, against gxpo's cells.

pettingllms-ai/PettingLLMs@a054fb1 pettingllms/trainer/multi_agents_ppo_trainer.py lines 1652-1683 (the group of a
candidate) and pettingllms/trainer/multi_agents_execution_engine.py lines 760-846 (rewards, then one branch for all);
advantages are verl's GRPO: mean and sample deviation of the group, 1e-6 beside it, (0, 1) of one alone."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
import torch
from tests.sampling.rollouts.team_session import TeamSession

import gxpo
from gxpo.parts.protocols import Task
from gxpo.sampling.rollouts.graph import Graph, Role

K = 3
# What the two agents say, by problem and candidate, and what that is worth: the solver's number is the team's reward,
# the checker's its own.
SOLVER = {"p": [0.0, 1.0, 0.5], "q": [0.25, 0.25, 0.0]}
CHECKER = {"p": [0.5, 0.0, 2.0], "q": [1.0, 0.0, 0.0]}


def local(said: Mapping[str, str], scores: Mapping[str, float]) -> float:
    return float(said["checker"][1:])


def grown(*problems: str) -> dict[str, list[tuple[float, float]]]:
    """Reward and credit of each candidate, by cell."""
    pair = Graph((Role("solver", "{prompt}", answer="{solver}"), Role("checker", "{prompt}!", local=local)))

    def script(policy: str, context: str, attempt: int) -> str:
        if context.endswith("!"):
            return f"c{CHECKER[context[0]][attempt]}"
        return f"s{SOLVER[context[0]][attempt]}"

    session = TeamSession(script, lambda task, text: float(text[1:]) if text.startswith("s") else 0.0)
    m = gxpo.method("at_grpo", {"rollout.graph": pair, "rollout.group_size": K})
    forest = m.rollout.grow(session.asked(*(Task(name, name) for name in problems)), session)
    credit = m.advantages(forest)
    actual: dict[str, list[tuple[float, float]]] = {}
    for r, group in enumerate(forest.group):
        of = (float(forest.outcome[r]), float(credit[forest.path_of(r)][0]))
        actual.setdefault(group.split("/", 1)[1], []).append(of)
    return actual


def released(*problems: str) -> list[tuple[str, int, list[float], list[float]]]:
    """Problem, agent, rewards and advantages of their candidates. The data carries the number of the problem, which the
    key of a group divides by K once more; all agents have spoken before the first reward is read, and once it is, the
    best branch stands in the place of all K, so that the second agent's rewards are K times that branch's."""
    rows: list[tuple[str, int, float, tuple[int, int, int]]] = []
    for number, name in enumerate(problems):
        taken = list(range(K))
        for agent in range(2):
            rewards = []
            for branch in taken:
                own_checker = CHECKER[name][branch] if agent else 0.0
                rewards.append(SOLVER[name][branch] + own_checker)
            for x in rewards:
                rows.append((name, agent, x, (number // K, 0, agent)))
            best = 0
            for i, x in enumerate(rewards):
                if x > rewards[best]:
                    best = i
            taken = [taken[best]] * K
    out = []
    for name in problems:
        for agent in range(2):
            key = next(k for n, a, _, k in rows if (n, a) == (name, agent))
            members = [x for _, _, x, k in rows if k == key]
            mean = sum(members) / len(members)
            std = math.sqrt(sum((x - mean) ** 2 for x in members) / (len(members) - 1))
            own_checker = [x for n, a, x, _ in rows if (n, a) == (name, agent)]
            out.append((name, agent, own_checker, [(x - mean) / (std + 1e-6) for x in own_checker]))
    return out


def test_of_one_problem_the_first_agent_has_the_same_credit() -> None:
    ((_, _, rewards, expected), *_) = released("p")
    actual = grown("p")["p/0:solver"]
    assert [x for x, _ in actual] == rewards and [a for _, a in actual] == pytest.approx(expected, abs=1e-9)


def test_the_second_agent_has_a_signal_here_and_none_there() -> None:
    """The candidate of 1.0 goes on. Theirs: the checker's three rewards are those of one branch, 1.0 + 0.0; here
    they are 1.0 plus .5, 0 and 2, deviation of the sample 1.040833."""
    _, (_, _, rewards, theirs) = released("p")
    assert rewards == [1.0] * K and theirs == [0.0] * K
    actual = grown("p")["p/1:checker"]
    assert [x for x, _ in actual] == [1.5, 1.0, 3.0]
    spread = math.sqrt(((1 / 3) ** 2 + (5 / 6) ** 2 + (7 / 6) ** 2) / 2) + 1e-6
    assert [a for _, a in actual] == pytest.approx([-1 / 3 / spread, -5 / 6 / spread, 7 / 6 / spread], abs=1e-9)


def test_k_problems_are_one_group_there() -> None:
    """Solvers of two problems, K = 3: six rewards of mean 1/3. A candidate of .25 that is among the best of its own
    problem is pushed down there; here it is pushed up."""
    theirs = {(name, agent): a for name, agent, _, a in released("p", "q")}
    assert theirs["q", 0][0] < 0 < grown("p", "q")["q/0:solver"][0][1]
    assert sum(theirs["p", 0]) + sum(theirs["q", 0]) == pytest.approx(0.0)
    assert all(abs(sum(a for _, a in cell)) < 1e-9 for cell in grown("p", "q").values())
    assert torch.tensor(theirs["q", 0]).sum() < 0
