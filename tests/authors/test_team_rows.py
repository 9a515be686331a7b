"""Numbers of papers on teams: groups, advantages, weights and utilities, worked out by hand or by their formulas."""

from __future__ import annotations

import math

import pytest
import torch
from tests.sampling.rollouts.team_session import TeamSession

import gxpo
from gxpo.algorithms.credit.gae import gae
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Task
from gxpo.sampling.rollouts.graph import Call, Graph, Role


def attempts(*turns_by_attempt: list[tuple[str, int]], rewards: list[float], group: str = "g") -> Forest:
    """Attempts of one task: (agent, number of tokens) of each turn; each turn under a context of its own."""
    return Forest.from_records(
        [
            {"schema": "gxpo.rollouts/1", "group": group, "id": f"{group}/{i}", "prompt": [1], "reward": reward,
             "success": reward >= 1,
             "turns": [{"agent": agent, "context": [2, j], "action": [3] * n, "logprob": [-1.0] * n,
                        "info": {"call": j}} for j, (agent, n) in enumerate(turns)]}
            for i, (turns, reward) in enumerate(zip(turns_by_attempt, rewards, strict=True))
        ]
    )  # fmt: skip


def first_of_each(forest: Forest, x: torch.Tensor) -> list[float]:
    return [float(x[forest.path_of(r)][0]) for r in range(forest.n_trajectories)]


def close(expected: list[float], tolerance: float = 1e-6) -> object:
    return pytest.approx(expected, abs=tolerance)


# ---------------------------------------------------------------- groups of calls, leaders, planners
def test_matpo_gives_workers_the_planners_advantage() -> None:
    # rewards .975, .05, .975, .1: mean .525, sample deviation .520016; workers with parents 0, 0, 1, 3, 3, 3
    plan, work = ("planner", 2), ("worker", 3)
    forest = attempts([plan, work, work], [plan, work], [plan], [plan, work, work, work],
                      rewards=[0.975, 0.05, 0.975, 0.1])  # fmt: skip
    m = gxpo.method("grpo")
    advantage = m.advantages(forest)
    assert first_of_each(forest, advantage) == close([0.865356, -0.913432, 0.865356, -0.817281])
    assert all(len(set(advantage[forest.path_of(r)].tolist())) == 1 for r in range(4))
    assert gxpo.method("matpo").credit == m.credit


def test_mlpo_centres_the_leaders_rewards() -> None:
    forest = attempts(*[[("leader", 1)]] * 4, rewards=[1.0, 0.0, 0.0, 1.1])
    assert first_of_each(forest, gxpo.method("mlpo").advantages(forest)) == close([0.475, -0.525, -0.525, 0.575])


def test_agentflow_broadcasts_the_outcome_and_weighs_turns_alike() -> None:
    # outcomes 1 and 0 with 1 and 3 turns; weights of a token 1 / (G T |a|): .125, and .083333, .033333, .166667
    forest = attempts([("solver", 4)], [("solver", 2), ("solver", 5), ("solver", 1)], rewards=[1.0, 0.0])
    m = gxpo.method("agentflow")
    advantage = m.advantages(forest)
    assert first_of_each(forest, advantage) == close([0.707106, -0.707106])
    weight = m.weights["turns"](forest, advantage, {}, 0)
    share = weight / forest.to_path(forest.lengths(), "R") / 2
    assert share.tolist() == close([0.125] * 4 + [0.083333] * 2 + [0.033333] * 5 + [0.166667])


def test_marft_runs_gae_along_the_chain_of_agents() -> None:
    # two steps of two agents, gamma .99, lambda .95; with both 1 and no values every agent gets the return
    reward = torch.tensor([0.0, 0.0, 0.0, 1.0], dtype=torch.float64)
    value = torch.tensor([0.2, 0.3, 0.4, 0.6], dtype=torch.float64)
    one = torch.zeros(4, dtype=torch.int64)
    assert gae(reward, value, one, one == 0, 0.99, 0.95).tolist() == close([0.691653, 0.632273, 0.5702, 0.4])
    assert gae(reward, 0 * value, one, one == 0).tolist() == [1.0] * 4
    credit = gxpo.method("marft").credit
    assert (credit.level, credit.turn_discount, credit.lam) == ("turn", 0.99, 0.95)


def test_plans_of_equal_value_are_no_pair() -> None:
    # values .2, .8, .8: the first is worst; .5, .5: no pair, so nothing is learned
    from gxpo.parts.learning import PolicyTokens

    m = gxpo.method("meta_plan")
    for values, loss in (([0.2, 0.8, 0.8], math.log(2)), ([0.5, 0.5], 0.0)):
        forest = attempts(*[[("planner", 1)]] * len(values), rewards=values)
        logprob = torch.full((forest.n_entries,), -1.0, dtype=torch.float64, requires_grad=True)
        total = m.loss(forest, PolicyTokens(logprob, logprob.detach(), logprob.detach())).value
        assert float(total.detach()) == pytest.approx(loss)


# ---------------------------------------------------------------- who is paid
def test_public_goods_pay_each_agent_its_utility() -> None:
    # contributions .6, .8, .9, C = 2.3, B = 2: .95, 1.13, 1.37 (the third: -.2 + .3 1.4 + 1.5 2.3 / 3)
    gives = {"a": 0.6, "b": 0.8, "c": 0.9}
    team = Graph(tuple(Role(n, f"{n}?", answer="{c}" if n == "c" else None,
                            local=lambda texts, scores, n=n: gives[n]) for n in gives))  # fmt: skip
    session = TeamSession(lambda policy, context, k: "x", lambda task, text: 1.0)
    m = gxpo.method("mac_spgg", {"rollout.graph": team, "rollout.group_size": 1})
    forest = m.shaped(m.rollout.grow([*session.asked(Task("t", "t", "x"))], session))
    assert forest.step_reward.tolist() == close([0.95, 1.13, 1.37])


def test_calls_beyond_the_first_have_a_price() -> None:
    team = Graph(
        (Role("lead", "q", answer="x", calls=(Call("h", "H", max_calls=3),), again="go on"),), helpers=(Role("h", "h"),)
    )
    session = TeamSession(lambda policy, context, k: "HHH" if context == "q" else "x", lambda task, text: 1.0)
    m = gxpo.method("mashost", {"rollout.graph": team, "rollout.group_size": 1})
    forest = m.shaped(m.rollout.grow(session.asked(Task("t", "t")), session))
    assert forest.step_reward.tolist() == close([-0.2, 0.0, 0.0, 0.0, 0.0])
    advantage = m.advantages(forest)  # a group of one: the price alone
    assert advantage[forest.path_step == 0].tolist() == close([-0.2] * 4)


def test_without_a_second_call_mashost_is_grpo() -> None:
    forest = attempts([("main", 2)], [("main", 1), ("main", 1)], rewards=[1.0, 0.0])
    m = gxpo.method("mashost")
    assert torch.equal(m.advantages(m.shaped(forest)), gxpo.method("grpo").advantages(forest))


def test_lca_adds_the_change_of_each_agents_potential() -> None:
    # phi 0, .2, .5, .4, gamma .99: .198, .295, -.104, and nothing for the last turn; another agent's turn lies between
    forest = attempts([("a", 1), ("b", 1), ("a", 1), ("a", 1), ("a", 1)], rewards=[1.0])
    phi = torch.tensor([0.0, 0.9, 0.2, 0.5, 0.4], dtype=torch.float64)
    advantage = gxpo.method("lca").advantages(forest, {"step_score": phi})
    assert advantage.tolist() == close([0.198, 0.0, 0.295, -0.104, 0.0])


def test_a_judges_scores_are_compared_by_agent_and_turn() -> None:
    forest = attempts([("a", 1), ("b", 1)], [("a", 1), ("b", 1)], rewards=[1.0, 0.0])
    scores = torch.tensor([0.8, 0.1, 0.4, 0.9], dtype=torch.float64)
    m = gxpo.method("collab_ui", {"credit.scale": "none"})
    assert m.advantages(forest, {"step_score": scores}).tolist() == close([0.2, -0.4, -0.2, 0.4])


# ---------------------------------------------------------------- whom to trust
def test_swarm_groups_are_normalised_alone() -> None:
    forest = attempts(*[[("agent", 1)]] * 4, rewards=[0.0, 1.0, 0.0, 0.0])
    assert first_of_each(forest, gxpo.method("sapo_swarm").advantages(forest)) == close([-0.5, 1.5, -0.5, -0.5])


@pytest.mark.parametrize(
    ("passing", "each", "total"),
    [(1, 3.316625, 3.316625), (3, 1.732051, 5.196152), (6, 1.0, 6.0), (9, 0.57735, 5.196152), (11, 0.301511, 3.316625)],
)
def test_an_attacker_with_half_of_a_group_moves_it_most(passing: int, each: float, total: float) -> None:
    # G = 12, population deviation: A = sqrt((G - k) / k), in all sqrt(k (G - k))
    forest = attempts(*[[("agent", 1)]] * 12, rewards=[1.0] * passing + [0.0] * (12 - passing))
    advantage = gxpo.method("thief_defence", {"credit.ddof": 0, "credit.eps": 0.0}).advantages(
        forest.replace(shaped_by=("reward.shape.factored",))
    )
    assert float(advantage[0]) == close(each) and float(advantage[:passing].sum()) == close(total)


def test_a_judge_gates_the_reward() -> None:
    forest = attempts(*[[("agent", 1)]] * 4, rewards=[1.0, 1.0, 0.0, 1.0])
    judged = forest.with_rewards(forest.outcome, components={"judge": torch.tensor([1.0, 0.0, 1.0, 1.0])})
    assert gxpo.method("thief_defence").shaped(judged).outcome.tolist() == [1.0, 0.0, 0.0, 1.0]


def test_robust_and_clean_returns_are_reported_apart() -> None:
    # clean 1; .4 and .7 with either role attacked: mean .55, worst .4
    from gxpo.sampling.rollouts.team import with_traitors

    forest = attempts(*[[("a", 1)]] * 3, rewards=[1.0, 0.4, 0.7])
    columns = with_traitors(forest, torch.tensor([False, True, True])).components
    clean, attacked = columns[:, 0], columns[:, 1]
    assert float(clean.nanmean()) == 1.0 and float(attacked.nanmean()) == pytest.approx(0.55)
    assert float(attacked[attacked.isfinite()].min()) == pytest.approx(0.4)
