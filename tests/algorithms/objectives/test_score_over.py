"""Scores over some turns: DMPO's factors, segments of equal length, the turn in which a group parts (REFUEL)."""

from __future__ import annotations

import pytest
import torch
from tests.algorithms.objectives import labelled_groups as groups

import gxpo
from gxpo.algorithms.objectives.score_over import Turns, factors, turns
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import PolicyTokens


def episodes(*actions: list[list[int]], success: tuple[bool, ...] = (True, False), rewards=None) -> Forest:
    """A group of episodes, each a list of actions."""
    return Forest.from_records(
        {
            "schema": "gxpo.rollouts/1",
            "group": "g",
            "id": f"t{i}",
            "prompt": [1],
            "turns": [{"observation": [2], "action": a, "logprob": [-1.0] * len(a)} for a in acts],
            "reward": float(success[i]) if rewards is None else rewards[i],
            "success": success[i],
        }
        for i, acts in enumerate(actions)
    )


def graded(name: str, forest: Forest, log_ratio: list[float], **options: object) -> float:
    """Loss of a method's objective where the log-ratio of every token to reference and old policy is this."""
    reference = torch.full((forest.n_entries,), -2.0, dtype=torch.float64)
    term = gxpo.method(name, {f"objective.{k}": v for k, v in options.items()}).terms["policy"]
    x = {"logprob": reference + torch.tensor(log_ratio, dtype=torch.float64), "reference_logprob": reference}
    return groups.graded(term, forest, x | {"behaviour_logprob": reference, "proximal_logprob": reference})[0]


def test_card_of_dmpo():
    """phi of three turns 1, .543379, .223744, of two 1, .411765: W = .331963, L = -.117647."""
    forest = episodes([[3], [4], [5]], [[6], [7]])
    assert factors(forest, "turns", 0.7).tolist() == pytest.approx([1, 0.543379, 0.223744, 1, 0.411765], abs=6e-7)
    assert graded("dmpo", forest, [0.3, 0.1, -0.1, -0.2, 0.2]) == pytest.approx(0.670919, abs=6e-7)


def test_without_discount_the_factors_fall_evenly():
    place, count = torch.arange(4), torch.full((4,), 4)
    assert turns(Turns(place, count, place, place), 1.0).tolist() == [1.0, 0.75, 0.5, 0.25]
    assert turns(Turns(place, count, place, place), 0.9999999).tolist() == pytest.approx([1, 0.75, 0.5, 0.25], abs=1e-6)


def test_card_of_sdpo():
    """After a turn that both took, .4 + .2 against -.3 + .1; what one has beyond the other's end is left out."""
    forest = episodes([[3], [4], [5], [9]], [[3], [6], [7]])
    assert factors(forest, "segment").tolist() == [0, 1, 1, 0, 0, 1, 1]
    assert factors(forest, "suffix").tolist() == [0, 1, 1, 1, 0, 1, 1]
    loss = graded("sdpo_segment", forest, [9.0, 0.4, 0.2, 5.0, 9.0, -0.3, 0.1])
    assert loss == pytest.approx(0.653947, abs=6e-7)


def test_rollouts_of_sdpo_fork_before_a_turn() -> None:
    rollout = gxpo.method("sdpo_segment").rollout
    assert (type(rollout).__name__, rollout.next_steps.__name__) == ("TurnBranches", "at_one_turn")
    assert (rollout.group_size, rollout.initial) == (2, 1)
    assert type(gxpo.method("sdpo_segment", {"rollout": "independent"}).rollout).__name__ == "Independent"


@pytest.mark.parametrize(
    ("ratios", "rewards", "eta", "loss"),
    [
        ((0.2, -0.1), (1.0, 0.0), 1.0, 0.49),  # (.3 - 1)^2
        ((0.2, -0.1), (1.0, 0.0), 0.1, 4.0),  # (3 - 1)^2
        ((0.3, -0.1), (1.0, 0.4), 0.5, 0.01 / 0.5**2),  # the code's (.4 - .5 .6)^2, over eta^2
    ],
)
def test_card_of_refuel(ratios, rewards, eta, loss):
    """The turn in which the two part alone, four times the group's loss: tokens before and after say nothing."""
    forest = episodes([[3], [4], [5]], [[3], [6]], rewards=list(rewards))
    assert factors(forest, "parting").tolist() == [0, 1, 0, 0, 1]
    refuel_loss = graded("refuel", forest, [7.0, ratios[0], 3.0, 7.0, ratios[1]], beta=1 / eta)
    assert 4 * refuel_loss == pytest.approx(loss)


def test_where_groups_part():
    assert factors(episodes([[3], [4]], [[3]]), "parting").tolist() == [1, 0, 1]  # one ends where the other goes on
    single = episodes([[3], [4]], success=(True,))
    assert factors(single, "parting").tolist() == [1, 0] and factors(single, "answer") is None
    same = episodes([[3], [4]], [[3], [4]])
    assert factors(same, "parting").tolist() == [0, 1, 0, 1]
    three = episodes([[3], [4], [5]], [[3], [4], [6]], [[3], [7], [8]], success=(True, False, False))
    assert factors(three, "suffix").tolist() == [0, 1, 1] * 3


def test_equal_actions_at_a_declared_fork_say_nothing():
    """Two that fork before a turn in which both act alike and then differently: D_1 = D_2, and (0 - 1)^2 / 4."""
    begun = [{"observation": [2], "action": [3], "logprob": [-1.0]}]
    record = {"schema": "gxpo.rollouts/1", "group": "g", "prompt": [1], "success": True}
    turns = [[{"observation": [2], "action": [a], "logprob": [-1.0]} for a in actions] for actions in ([4, 5], [4, 6])]
    shared = [
        record | {"id": "a", "turns": begun + turns[0], "reward": 1.0},
        record | {"id": "b", "turns": turns[1], "reward": 0.0, "fork": {"of": "a", "turn": 0}},
    ]
    forest = Forest.from_records(shared)
    assert factors(forest, "parting").tolist() == [0, 1, 0, 0, 1, 0]
    assert graded("refuel", forest, [7.0, 0.4, 3.0, 7.0, 0.4, -2.0]) == pytest.approx(0.25)
    # no action is shared at the prompt, nor where trajectories are written out: rollouts note their tree and what is
    # their own of it; without that, turns are compared by their tokens
    full_turns = {"a": begun + turns[0], "b": begun + turns[1]}
    tree = {"tree": 0, "path": [], "calls": 3}
    for infos, at in (
        ((tree, {"tree": 1, "path": [], "calls": 3}), 0),
        ((tree, {"tree": 0, "path": [0], "calls": 2}), 1),
        ((tree, {"tree": 0, "path": [0], "calls": 1}), 2),
        (({}, {}), 2),
    ):
        rows = [record | {"id": i, "turns": full_turns[i], "info": info} for i, info in zip("ab", infos, strict=True)]
        factor_by_token = factors(Forest.from_records(rows), "parting").tolist()
        assert factor_by_token == [float(t == at) for t in range(3)] * 2, infos


def test_tokens_that_a_score_is_not_over_are_not_read():
    forest = episodes([[3], [4], [5]], [[3], [6]])
    term = gxpo.method("refuel").terms["policy"]
    ones = torch.ones(forest.n_entries, dtype=torch.float64)
    assert term.active(forest, ones, ones).tolist() == [False, True, False, False, True]
    unread = torch.tensor([torch.nan, -1.0, torch.nan, torch.nan, -1.0], dtype=torch.float64)
    value, _ = term(forest, PolicyTokens(unread, ones - 2, ones - 2), 0 * ones, ones, {}, 0)
    assert float(value) == pytest.approx(1 / 4)


def test_card_of_p3o():
    """R = 1 and .2, ratios 1.3 and .9, clip .2: A = .4 and -.4, .4 1.2 - .4 .9 = .12, over two."""
    forest = episodes([[3]], [[4]], rewards=[1.0, 0.2])
    m = gxpo.method("p3o")
    credit = m.advantages(forest)
    assert credit.tolist() == pytest.approx([0.4, -0.4])
    assert m.advantages(episodes([[3]], [[4]], rewards=[4.0, 3.2])).tolist() == pytest.approx([0.4, -0.4])
    old = torch.full((2,), -2.0, dtype=torch.float64)
    logprob = old + torch.tensor([1.3, 0.9], dtype=torch.float64).log()
    p3o_loss = m.loss(forest, PolicyTokens(logprob, old, proximal_logprob=old), advantages=credit)
    assert float(p3o_loss.value) == pytest.approx(-0.12 / 2)
    # of two and three tokens: one term an answer, and each token has the gradient of its answer's ratio
    forest = episodes([[3, 4]], [[5, 6, 7]], rewards=[1.0, 0.2])
    old = torch.full((5,), -2.0, dtype=torch.float64)
    moved = torch.tensor([1.0, 1.1, 0.5, 0.9, 2.0], dtype=torch.float64)  # answers' ratios 1.1 and .9
    logprob = (old + moved.log()).requires_grad_()
    p3o_loss = m.loss(forest, PolicyTokens(logprob, old, proximal_logprob=old), advantages=m.advantages(forest))
    assert p3o_loss.value.item() == pytest.approx(-(0.4 * 1.1 - 0.4 * 0.9) / 2)
    slope = torch.autograd.grad(p3o_loss.value, logprob)[0].tolist()
    assert slope == pytest.approx([-0.22] * 2 + [0.18] * 3)
