"""Rollouts that were sampled under another context than they are trained under, and levels that rollouts note down."""

import pytest
import torch
from tests.learning.llamas import clean_llama

from gxpo.forest.forest import Forest
from gxpo.learning.torch import TorchLearner


def record(name, turns, **more):
    return {
        "schema": "gxpo.rollouts/1",
        "group": "g",
        "id": name,
        "prompt": [3, 4],
        "turns": turns,
        "reward": 1.0,
    } | more


HINTED = record("a", [{"action": [5, 6], "logprob": [-1.0, -1.0], "sampled_under": [3, 4, 9, 9]}])
PLAIN = record("b", [{"action": [5, 7], "logprob": [-1.0, -1.0]}])


def test_a_row_is_read_under_the_context_it_was_sampled_in():
    """pi(5 6 | 3 4 9 9) for the hinted row, pi(. | 3 4) for the other: what rows with those prompts have."""
    learner = TorchLearner(clean_llama(), lr=0.0)
    forest = Forest.from_records([HINTED, PLAIN])
    written = Forest.from_records(
        [record("a", [{"action": [5, 6]}], prompt=[3, 4, 9, 9]), record("b", [{"action": [5, 7]}])]
    )
    sampled = learner.outputs(forest.in_context("sampled"))["logprob"]
    assert torch.allclose(sampled, learner.outputs(written)["logprob"], atol=1e-12, rtol=0)
    trained = learner.outputs(forest.in_context("trained"))["logprob"]
    plain = Forest.from_records([record("a", [{"action": [5, 6]}]), record("b", [{"action": [5, 7]}])])
    assert torch.allclose(trained, learner.outputs(plain)["logprob"], atol=1e-12, rtol=0)
    assert (sampled - trained)[:2].abs().min() > 1e-6 and torch.allclose(sampled[2:], trained[2:], atol=1e-12, rtol=0)


def test_an_action_that_a_fork_splits_follows_the_other_context_as_a_whole():
    learner = TorchLearner(clean_llama(), lr=0.0)
    fork = record("c", [{"action": [8]}], fork={"of": "a", "turn": 0, "token": 1})
    del fork["prompt"]
    forest = Forest.from_records([HINTED, fork]).in_context("sampled")
    written = Forest.from_records(
        [record("a", [{"action": [5, 6]}], prompt=[3, 4, 9, 9]), record("c", [{"action": [5, 8]}], prompt=[3, 4, 9, 9])]
    )
    assert torch.allclose(learner.outputs(forest)["logprob"], learner.outputs(written)["logprob"], atol=1e-12, rtol=0)


def test_without_such_rows_both_contexts_are_one():
    forest = Forest.from_records([PLAIN])
    assert torch.equal(forest.in_context("sampled").parent, forest.parent)
    with pytest.raises(ValueError, match="'trained' or 'sampled'"):
        forest.in_context("hinted")


def test_levels_from_what_rollouts_note_down():
    rows = [
        record("a", [{"action": [5], "info": {"kind": "x"}}, {"observation": [1], "action": [6]}], info={"tree": 7}),
        record("b", [{"action": [5], "info": {"kind": "y"}}], info={"tree": 7}),
        record("c", [{"action": [5], "info": {"kind": "x"}}], info={"tree": "other"}),
        record("d", [{"action": [5], "info": {"kind": "x"}}], group="h", info={"tree": 7}),
        record("e", [{"action": [5]}], group="h"),
    ]
    forest = Forest.from_records(rows)
    tree = forest.ids("group", "info.tree", axis="R").tolist()
    # a and b share a tree; d's is of another group, though it has the same name; e is in none
    assert tree[0] == tree[1] and len({tree[0], tree[2], tree[3]}) == 3 and tree[4] == -1
    assert forest.ids("info.tree").tolist() == tree
    kinds = forest.ids("step_info.kind", axis="S").tolist()  # steps: a0, a1, b0, c0, d0, e0
    assert kinds[0] == kinds[3] != kinds[2] and kinds[1] == kinds[5] == -1 and kinds[4] not in (kinds[0], -1)
    assert forest.ids("info.tree", axis="P").tolist() == [tree[0], tree[0], tree[1], tree[2], tree[3], -1]
    with pytest.raises(ValueError, match=r"step_info\.kind"):
        forest.ids("step_info.kind", axis="R")
