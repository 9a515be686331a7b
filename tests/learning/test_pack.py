from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from tests.strategies import forests, random_forest

from gxpo.base.errors import GxpoError
from gxpo.forest.forest import Forest

few = settings(max_examples=25, deadline=None)


def way(forest: Forest, token: int) -> list[int]:
    """Stored tokens from the root to this one, walked node by node."""
    node = int(forest.token_node[token])
    out: list[int] = []
    while node >= 0:
        begin, end = int(forest.first_token[node]), int(forest.first_token[node + 1])
        out = [t for t in range(begin, end) if node != int(forest.token_node[token]) or t <= token] + out
        node = int(forest.parent[node])
    return out


@few
@given(forests())
def test_positions_predecessors_and_mask_follow_the_path(forest: Forest) -> None:
    packed = forest.pack()
    ways = [way(forest, t) for t in range(forest.n_tokens)]
    assert packed.token is forest.token
    assert packed.position.tolist() == [len(w) - 1 for w in ways]
    assert packed.predecessor.tolist() == [w[-2] if len(w) > 1 else -1 for w in ways]
    for n in range(forest.n_nodes):
        path = forest.path(n).tolist()
        assert packed.tree[n] == path[0]
        assert packed.begin[n] == sum(int(forest.first_token[m + 1] - forest.first_token[m]) for m in path[:-1])
    tokens = torch.randperm(forest.n_tokens)[: max(1, forest.n_tokens // 2)]
    mask = packed.mask(tokens)
    expected = [[int(b) in ways[int(a)] for b in tokens] for a in tokens]
    assert mask.tolist() == expected


@few
@given(forests())
def test_a_path_token_sees_its_whole_trajectory_and_no_more(forest: Forest) -> None:
    """What a token attends to, in order of position, is what the record says it was conditioned on."""
    packed = forest.pack()
    mask = packed.mask(torch.arange(forest.n_tokens))
    for s in range(forest.n_steps):
        context = forest.context(int(forest.parent[forest.step_nodes(s)[0]])) if forest.step_nodes(s) else []
        action = forest.action(s)
        for i, t in enumerate(forest.path_token[forest.path_step == s].tolist()):
            seen_squeeze = mask[t].nonzero().squeeze(1)
            seen_squeeze = seen_squeeze[packed.position[seen_squeeze].argsort()]
            assert packed.position[seen_squeeze].tolist() == list(range(len(seen_squeeze)))
            assert forest.token[seen_squeeze].tolist() == context + action[: i + 1]


@few
@given(forests())
def test_ancestors(forest: Forest) -> None:
    nodes = torch.randperm(forest.n_nodes)
    above = forest.pack().ancestors(nodes)
    assert above.tolist() == [[int(b) in forest.path(int(a)).tolist() for b in nodes] for a in nodes]


@few
@given(forests())
def test_packed_positions_are_those_of_the_flat_forest(forest: Forest) -> None:
    flat, packed = forest.flatten(), forest.pack()
    other = flat.pack()
    assert torch.equal(packed.position[forest.path_token], other.position[flat.path_token])
    before, flat_before = packed.predecessor[forest.path_token], other.predecessor[flat.path_token]
    assert torch.equal(before < 0, flat_before < 0)
    assert torch.equal(forest.token[before.clamp_min(0)][before >= 0], flat.token[flat_before[flat_before >= 0]])


def test_a_shared_prompt_is_stored_once() -> None:
    f = Forest.from_completions([[5, 6, 7]], [[[1, 2], [1, 2], [3]]], [[1.0, 0.0, 0.0]])
    packed = f.pack()
    assert f.n_tokens == 3 + 5
    assert packed.position.tolist() == [0, 1, 2, 3, 4, 3, 4, 3]
    assert packed.predecessor.tolist() == [-1, 0, 1, 2, 3, 2, 5, 2]
    assert packed.mask(torch.tensor([4, 6])).tolist() == [[True, False], [False, True]]


def test_text_without_ids_is_refused() -> None:
    turns = [{"action": [1]}, {"action_text": "yes", "observation_text": "look"}]
    record = {"schema": "gxpo.rollouts/1", "group": "g", "id": "a", "turns": turns, "prompt_text": "how many?"}
    with pytest.raises(GxpoError, match=r"pack\(\) needs token ids, but 1 actions, 1 observations, 1 prompts are text"):
        Forest.from_records([record]).pack()
    assert random_forest(0).missing_ids == ""
