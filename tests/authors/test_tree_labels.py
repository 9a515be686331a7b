"""AlphaMath, MASPRM and HRM against their authors' searches and labels: selection by hand, values by counting ends."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import gxpo
from gxpo.algorithms.credit.value_delta import ValueDelta
from gxpo.algorithms.signals.merged_steps import MergedSteps
from gxpo.forest.forest import Forest
from gxpo.sampling.rollouts.search import Search
from gxpo.sampling.rollouts.search_nodes import Node
from gxpo.sampling.rollouts.team_search import TeamSearch

F64 = torch.float64

# a parent of 7 visits; its children's visits, sums of +-1 and log-probs of their tokens
ABOVE = 7
CHILDREN = [
    (3, 1.0, [-0.1, -0.5, -0.3]),
    (1, -1.0, [-0.05]),
    (3, 3.0, [-2.0, -1.0]),
    (0, 0.0, [-1.6, -0.2, -0.6, -0.4]),
]


def grown() -> tuple[Node, list[Node]]:
    above = Node(visits=ABOVE)
    for visits, value, logprobs in CHILDREN:
        child = above.add("", logprobs, terminal=False, is_cut=False)
        child.visits, child.value = visits, value
    return above, above.children


def chosen(method: str, **changes: Any) -> int:
    """Which child the search of a method goes to."""
    above, children = grown()
    for i, (visits, value) in changes.get("children", {}).items():
        children[i].visits, children[i].value = visits, value
    part = gxpo.method(method).rollout
    assert isinstance(part, (Search, TeamSearch))
    return children.index(part._choose(children, above, random.Random(0)))


def scores(method: str) -> list[float]:
    above, children = grown()
    return [gxpo.method(method).rollout._score(c, above) for c in children]


# ---------------------------------------------------------------- AlphaMath
def test_alphamaths_selection() -> None:
    """MARIO-Math-Reasoning/Super_MARIO@c11d2f2f974c mcts_math/nodes/mcts_node.py, lines 47-50, c_puct 1.5 (config.py);
    the prior is exp(cumulative log-prob / tokens) (agents/mcts.py, line 125), unvisited children have q 0."""
    expected = []
    for visits, value, logprobs in CHILDREN:
        q = value / visits if visits > 0 else 0.0
        prior = math.exp(sum(logprobs) / len(logprobs))
        expected.append(q + 1.5 * prior * math.sqrt(ABOVE) / (1 + visits))
    assert scores("alphamath") == pytest.approx(expected, abs=1e-12)
    # 1.07, .89, 1.22, 1.97: the unvisited one; once it failed, .49 - 1, the third
    assert chosen("alphamath") == 3 and chosen("alphamath", children={3: (1, -1.0)}) == 2
    part = gxpo.method("alphamath").rollout
    assert (part.width, part.values, part.backup, part.resume_at) == (5, "mean", "all", "root")


# ---------------------------------------------------------------- MASPRM
def test_masprms_selection() -> None:
    """milad1378yz/MASPRM@9480f7422ffb src/mcts.py, lines 128-131: visits of parent and child count as one at least, so
    that an unvisited child need not come first; c 2, 4 candidates (lines 140-141), the first of the largest."""
    expected = []
    for visits, value, _ in CHILDREN:
        q = value / visits if visits > 0 else 0.0
        expected.append(q + 2.0 * math.sqrt(math.log(max(ABOVE, 1)) / max(visits, 1)))
    assert scores("masprm") == pytest.approx(expected, abs=1e-12)
    # 1.94, 1.79, 2.61, 2.79: now the unvisited one, not once another has 2 of 2
    assert chosen("masprm") == 3 and chosen("masprm", children={1: (2, 2.0)}) == 1
    part = gxpo.method("masprm").rollout
    assert (part.width, part.values, part.backup, part.resume_at) == (4, "mean", "all", "root")


def test_a_parent_without_visits_prefers_nobody() -> None:
    above, children = grown()
    above.visits = 0
    part = gxpo.method("masprm").rollout
    assert [part._score(c, above) for c in children] == pytest.approx([1 / 3, -1.0, 1.0, 0.0])


# ---------------------------------------------------------------- values of a tree
def tree(*rows: tuple[str, int, Sequence[int], tuple[str, int] | None]) -> Forest:
    """(name, right, lengths of its own steps, (base, tokens kept) or None) each."""
    return Forest.from_records(
        {
            "schema": "gxpo.rollouts/1",
            "group": "g",
            "id": name,
            "reward": float(right),
            "success": bool(right),
            "turns": [{"action": [5] * sum(steps), "segments": [sum(steps[:i]) for i in range(len(steps))]}],
            **({"prompt": [1]} if base is None else {"fork": {"of": base[0], "turn": 0, "token": base[1]}}),
        }
        for name, right, steps, base in rows
    )


#      first step of 2 tokens, shared by a, b, c; second of 1, shared by a and b; d alone
ENDS = [("a", 1, [2, 1, 3], None), ("b", 0, [2], ("a", 3)), ("c", 1, [1, 1], ("a", 2)), ("d", 0, [2, 2], None)]
PATHS = {"a": ["s", "s.0", "a"], "b": ["s", "s.0", "b"], "c": ["s", "s.1", "c"], "d": ["t", "d"]}


def counted() -> dict[str, float]:
    """Right ends below each node over ends below it."""
    right, ends = dict[str, int](), dict[str, int]()
    for name, r, *_ in ENDS:
        for node in PATHS[name]:
            ends[node] = ends.get(node, 0) + 1
            right[node] = right.get(node, 0) + r
    return {node: right[node] / ends[node] for node in ends}


def test_targets_are_the_means_below() -> None:
    """Both searches back every end up as +1 or -1 and take sum / visits (mcts_node.py, lines 23-45; mcts.py, lines
    30-34 and 244-254): q = 2 V - 1. AlphaMath's Q stands at the last token of a step (implementation_details.md), at
    its line break; MASPRM's at the separator after it."""
    forest, share = tree(*ENDS), counted()
    target = ValueDelta("pieces", target="last").targets(forest, {}, 0)["value_target"]
    for r, (name, *_) in enumerate(ENDS):
        actual = [v for v in target[forest.path_of(r)].tolist() if not math.isnan(v)]
        assert actual == pytest.approx([share[node] for node in PATHS[name]])
        q = [2 * v - 1 for v in actual]
        ends = [[1 if n in ("a", "c") else -1 for n in PATHS if node in PATHS[n]] for node in PATHS[name]]
        assert q == pytest.approx([sum(own_end) / len(own_end) for own_end in ends])
    assert target[forest.path_of(0)].isnan().tolist() == [True, False, False, True, True, False]


def test_alphamaths_head_and_imitation() -> None:
    """implementation_details.md: the value term is the mean over step ends of (value - Q)^2, labels of wrong solutions
    are ignored. In gxpo (value - V)^2 / 2 by 0.5, mean over step ends, and -r log policy over all attempts."""
    forest, m = tree(*ENDS), gxpo.method("alphamath")
    n = forest.n_entries
    x = torch.linspace(-2.0, -0.1, n, dtype=F64, requires_grad=True)
    value = torch.linspace(-0.3, 1.2, n, dtype=F64)
    loss = m.loss(forest, gxpo.PolicyTokens(x, x.detach(), value=value)).value
    (slopes,) = torch.autograd.grad(loss, x)
    target = ValueDelta("pieces", target="last").targets(forest, {}, 0)["value_target"].tolist()
    errors = [(v - t) ** 2 for v, t in zip(value.tolist(), target, strict=True) if not math.isnan(t)]
    imitation = 0.0
    for r, (_, right, *_) in enumerate(ENDS):
        own_value = x.detach()[forest.path_of(r)].tolist()
        imitation += -right * sum(own_value) / len(own_value) / len(ENDS)
    assert float(loss.detach()) == pytest.approx(imitation + 0.25 * sum(errors) / len(errors))
    assert [r for r in range(4) if bool(slopes[forest.path_of(r)].any())] == [0, 2]


# ---------------------------------------------------------------- HRM
def probe(**fields: Any) -> tuple[MergedSteps, Forest, torch.Tensor, Any]:
    forest = tree(*ENDS)
    table = torch.randn(forest.n_tokens, 3, generator=torch.Generator().manual_seed(0))
    learner = SimpleNamespace(hidden=lambda f, layer=-1: table)
    tools: Any = SimpleNamespace(learner=learner, decode=str, blank_id=0, step=1, seed=0)
    part = MergedSteps(min_rows=2, **fields)
    part.compute(forest, {}, tools)
    part.learn(forest, {}, tools)
    return part, forest, table, tools


def test_hrms_labels() -> None:
    """tengwang0318/hierarchial_reward_model@cc638d02c9bf self-training/construct_hrm_train_data.py, lines 104-158 (of
    the leaves below a node the share of right ones) and 190-244 (the last two steps as one, with the node's label)."""
    part, _, _, _ = probe()
    share, steps, pairs = counted(), [], []
    for node in ("s", "s.0", "a", "b", "s.1", "c", "t", "d"):  # in time, every node once
        steps.append(share[node])
        if node not in ("s", "t"):
            pairs.append(share[node])
    assert part.memory["target"].tolist() == pytest.approx(steps + pairs)


def test_hrm_judges_single_steps() -> None:
    """self-training/best_of_n_math500.py, `calculate_PRM_HRM_scores`: the judged text is the current step, whatever the
    model was trained on. A step's reward is that of its own hidden states; blended it depends on the one before."""
    for scored, moves in (("step", False), ("blend", True)):
        part, forest, table, tools = probe(score_unit=scored)
        before = part.compute(forest, {}, tools)["piece_reward"]
        d = forest.path_token[forest.path_of(3)]  # t, then d
        table[d[:2]] += 1.0
        after = part.compute(forest, {}, tools)["piece_reward"]
        entries = forest.path_of(3)
        assert bool((before[entries][:2] != after[entries][:2]).all())
        assert bool((before[entries][2:] != after[entries][2:]).all()) == moves
    assert gxpo.method("hrm").signals["merged_steps"].score_unit == "step"
