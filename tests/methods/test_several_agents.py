"""Numbers of the papers of several agents: returns by role, factors, penalties, welfare, figures."""

import pytest
import torch

import gxpo
from gxpo.algorithms.objectives.role_kl import adapt_coef, step_penalty
from gxpo.algorithms.signals.central_value import joint_features
from gxpo.environments.tasks.peers import social_figures
from gxpo.learning.turns_reversed import agent_order, turn_ratio
from gxpo_worlds.secrets import private_score
from gxpo_worlds.taxes import equality, gini, utility, welfare


def seat(name, group, agent, rewards, episode="e"):
    turns = [{"observation": [1], "action": [5], "reward": r, "agent": agent} for r in rewards]
    return {
        "schema": "gxpo.rollouts/1", "group": group, "id": name, "prompt": [7], "turns": turns,
        "reward": float(sum(rewards)), "info": {"episode": episode},
    }  # fmt: skip


def test_marshal_takes_the_mean_of_a_roles_turns_off_its_returns():
    # R = [1, 1] and [-.5, -.5, .5]: mean .3; the other role's turns don't count
    forest = gxpo.Forest.from_records(
        [seat("a", "g0", "X", [0, 1]), seat("b", "g1", "X", [0, -1, 0.5]), seat("c", "g2", "O", [3, 3])]
    )
    advantage = gxpo.method("mars_turn").advantages(forest)
    assert advantage[:5].tolist() == pytest.approx([0.7, 0.7, -0.8, -0.8, 0.2])
    assert advantage[5:].tolist() == pytest.approx([1.5, -1.5])


def test_a_later_agents_factor_is_the_ratio_of_those_before():
    # 1.2 * .9 = 1.08; of three dimensions 1.1 * .8 * 1.3 = 1.144
    one = torch.tensor([1.2, 0.9]).log()
    assert float(turn_ratio(one, torch.zeros(2, dtype=torch.int64), 1, "product")) == pytest.approx(1.08)
    three = torch.tensor([1.1, 0.8, 1.3]).log()
    assert float(turn_ratio(three, torch.zeros(3, dtype=torch.int64), 1, "product")) == pytest.approx(1.144)


def test_agents_of_one_episode_share_their_factor():
    forest = gxpo.Forest.from_records(
        [seat("a", "g0", "X", [1], "e0"), seat("b", "g1", "O", [0], "e0"), seat("c", "g0", "X", [1], "e1")]
    )
    place, unit = agent_order(forest)
    assert unit.tolist() == [0, 0, 1] and sorted(set(place.tolist())) == [0, 1] and place[0] == place[2]


def test_the_penalty_of_a_step_has_a_root_and_a_value():
    assert float(step_penalty(torch.tensor(0.04, dtype=torch.float64), 1.0, 1.0)) == pytest.approx(0.24, abs=1e-7)
    assert [adapt_coef(1.0, kl, 0.01) for kl in (0.04, 0.001, 0.012)] == [2.0, 0.5, 1.0]


def test_a_central_critic_knows_the_others_of_an_episode():
    own = torch.tensor([[1.0], [2.0], [4.0], [8.0]])
    features = joint_features(own, own, torch.tensor([0, 0, 0, 1]))
    assert features.tolist() == [[1, 3], [2, 2.5], [4, 1.5], [8, 0]]


def test_welfare_is_equality_times_productivity():
    assert gini([10, 20, 70]) == pytest.approx(0.4) and equality([10, 20, 70]) == pytest.approx(0.4)
    assert welfare([10, 20, 70]) == pytest.approx(13.333333, abs=1e-6)
    assert welfare([10, 20, 70], 0.5) == pytest.approx(23.333333, abs=1e-6)
    # [1, 2, 3, 4]: Gini .25, equality 2/3, productivity 10
    assert gini([1, 2, 3, 4]) == 0.25 and equality([1, 2, 3, 4]) == pytest.approx(2 / 3)
    assert [round(utility(c), 6) for c in (10, 20, 70)] == [6.348619, 11.742043, 32.917734]
    assert utility(1.0, 1.0) == 0.0


def test_a_leak_costs_its_share_of_the_task():
    assert private_score(0.8, 2, 5) == pytest.approx(0.48)


def test_peers_are_of_use_and_can_be_resisted():
    figures = social_figures([1, 1, 1, 0, 0, 0, 1, 0], [1, 0, 1, 1, 0, 1, 1, 0])
    assert figures == {"utility": 0.5, "resistance": 0.75, "f1": pytest.approx(0.6)}


def test_each_role_may_have_a_head_of_its_own():
    method = gxpo.method(
        "ippo",
        {
            "credit.roles": ["X", "O"],
            "objective.add.value.head": "X",
            "objective.add.other": "value_regression",
            "objective.add.other.head": "O",
        },
    )
    assert set(method.value_heads) == {"value@X", "value@O"}
    forest = gxpo.Forest.from_records([seat("a", "g0", "X", [1]), seat("b", "g1", "O", [0])])
    signals = {"value@X": torch.tensor([0.25, 9.0]), "value@O": torch.tensor([9.0, 0.5])}
    assert method.advantages(forest, signals).tolist() == [0.75, -0.5]
    targets = method.targets(forest, signals)
    assert targets["value_target@X"][0] == 1.0 and targets["value_target@O"][1] == 0.0
    assert targets["value_target@X"].isnan().tolist() == [False, True]
