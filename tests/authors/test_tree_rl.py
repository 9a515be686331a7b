"""TreeRL's credit as its script runs it.

THUDM/TreeRL@f0edbea: scripts/treerl-qw14b.sh, lines 73-100; in openrlhf/trainer/ppo_utils tree_node.py, lines 377-570
(leaf_normalize, leaf_backpropagate, selected_backpropagate, compute_weighted_update), and parallel_mcts.py, lines
1556-1670 (fill_in_paths, path_from_root_to_node, gather_paths).
"""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass, field

import pytest

import gxpo
from gxpo.forest.forest import Forest


@dataclass
class Node:
    tokens: list[int]
    above: Node | None = None
    score: float | None = None  # of a leaf
    total: float = 0.0  # scores of the leaves below, after the baseline
    leaves: int = 0
    below: list[Node] = field(default_factory=list)


def released(roots: list[Node]) -> dict[int, float]:
    """Token -> credit."""
    top = Node([], below=roots)
    nodes, leaves = [top], []
    for node in nodes:
        nodes += node.below
        for child in node.below:
            child.above = node
        if node.score is not None:
            leaves.append(node)
    everything = sum(leaf.score or 0.0 for leaf in leaves)
    for leaf in leaves:
        mine = leaf.score or 0.0
        centred = mine - (everything - mine) / (len(leaves) - 1)
        at: Node | None = leaf
        while at is not None:
            at.total, at.leaves, at = at.total + centred, at.leaves + 1, at.above
    worth = {id(n): n.total / math.sqrt(n.leaves) / n.leaves for n in nodes}

    credit: dict[int, float] = {}
    for leaf in leaves:
        way, at = [], leaf
        while at is not None and at is not top:
            way.insert(0, at)
            at = at.above
        changes: list[float] = []
        for node in way:
            assert node.above is not None
            change = worth[id(node)] - worth[id(node.above)]
            changes.append(changes[-1] if changes and abs(change) < 1e-8 else change)
        for node, change in zip(way, changes, strict=True):
            credit.update(dict.fromkeys(node.tokens, change + worth[id(node)]))
    return credit


def record(name: str, reward: float, action: list[int], fork: tuple[str, int] | None) -> dict[str, object]:
    start = {"prompt": [1]} if fork is None else {"fork": {"of": fork[0], "turn": 0, "token": fork[1]}}
    base = {"schema": "gxpo.rollouts/1", "group": "g", "id": name, "reward": reward}
    return {**base, "turns": [{"action": action}], **start}


def found(records: list[dict[str, object]]) -> dict[int, float]:
    forest = Forest.from_records(records)
    credit = gxpo.method("tree_rl", {"credit.form": "released"}).advantages(forest).tolist()
    ids = forest.token[forest.path_token].tolist()
    return dict(zip(ids, credit, strict=True))


def test_a_node_above_two_successes() -> None:
    # 2 3 | 4 and 5 after it succeed, 6 7 fails. Centred leaves .5, .5, -1
    records = [record("a", 1.0, [2, 3, 4], None), record("b", 1.0, [5], ("a", 2)), record("c", 0.0, [6, 7], None)]
    credit = found(records)
    roots = [Node([2, 3], below=[Node([4], score=1.0), Node([5], score=1.0)]), Node([6, 7], score=0.0)]
    assert credit == pytest.approx(released(roots), abs=1e-9)
    assert [credit[t] for t in (2, 4, 5, 6)] == pytest.approx(
        [0.7071067812, 0.6464466094, 0.6464466094, -2.0], abs=1e-9
    )


def test_a_flat_node_has_the_change_before_it() -> None:
    # below token 3 half succeed, as of all: W 0. Below 4 too: its change, 0, is replaced by that of 3, which is -W(2)
    records = [
        record("a", 1.0, [2, 3, 4, 5], None), record("b", 0.0, [6], ("a", 3)), record("c", 1.0, [7], ("a", 2)),
        record("d", 0.0, [8], ("a", 2)), record("e", 1.0, [9], ("a", 1)), record("f", 0.0, [10], None),
    ]  # fmt: skip
    inner = Node([4], below=[Node([5], score=1.0), Node([6], score=0.0)])
    flat = Node([3], below=[inner, Node([7], score=1.0), Node([8], score=0.0)])
    roots = [Node([2], below=[flat, Node([9], score=1.0)]), Node([10], score=0.0)]
    credit = found(records)
    assert credit == pytest.approx(released(roots), abs=1e-9)
    # W(2): 3 of 5 right against 3 of 6, 6/5 * .1 / sqrt(5)
    assert credit[3] == credit[4] == pytest.approx(-0.12 / math.sqrt(5), abs=1e-9)


@pytest.mark.parametrize("seed", range(12))
def test_trees_of_all_shapes(seed: int) -> None:
    rng, token = random.Random(seed), iter(range(2, 10**6))
    records, roots = [], []
    for t in range(rng.randrange(1, 4)):
        length = rng.randrange(3, 8)
        tokens = [next(token) for _ in range(length)]
        cuts = sorted(rng.sample(range(1, length), rng.randrange(1, 4) if length > 3 else 1))
        records.append(record(f"t{t}", reward := float(rng.random() < 0.5), tokens, None))
        chain = [Node(tokens[i:j]) for i, j in zip([0, *cuts], [*cuts, length], strict=True)]
        chain[-1].score = reward
        for node, child in itertools.pairwise(chain):
            node.below.append(child)
        roots.append(chain[0])
        for k, cut in enumerate(cuts):
            for j in range(rng.randrange(1, 3)):
                own_tokens, right = [next(token) for _ in range(rng.randrange(1, 3))], float(rng.random() < 0.5)
                records.append(record(f"t{t}.{k}.{j}", right, own_tokens, (f"t{t}", cut)))
                chain[k].below.append(Node(own_tokens, score=right))
    if len({r["reward"] for r in records}) > 1:
        assert found(records) == pytest.approx(released(roots), abs=1e-9)
