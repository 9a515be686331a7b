"""Credit of steps that share states, and of answers that share beginnings, as the authors' repositories compute it.

Loops over lists, written from the files that each method's `code` names. Theirs is float32; eps and ddof are theirs.
"""

from __future__ import annotations

import math

import pytest

import gxpo
from gxpo.forest.forest import Forest

# Of each attempt: group, outcome, (state, reward, tokens) of each step. Two attempts go twice through one state, "z" is
# met once, and both groups meet "s".
WALKS = [
    ("a", 1.0, [("s", 0.0, 2), ("t", 0.5, 1), ("u", 1.0, 3)]),
    ("a", 0.0, [("s", -0.1, 1), ("t", 0.0, 2)]),
    ("a", 0.0, [("s", 0.0, 1), ("s", -0.1, 1), ("t", -0.2, 1), ("z", 0.0, 2)]),
    ("a", 1.0, [("t", 0.0, 2), ("s", 0.3, 1), ("t", 0.7, 1)]),
    ("b", 0.0, [("s", 0.0, 2), ("t", 0.0, 1)]),
    ("b", 1.0, [("s", 0.0, 1), ("t", 0.9, 2), ("s", 0.1, 1)]),
]
STEPS = [(i, k) for i, (_, _, steps) in enumerate(WALKS) for k in range(len(steps))]


def walks(final: bool = False) -> Forest:
    records = []
    for i, (group, outcome, steps) in enumerate(WALKS):
        turns = [
            {"observation": [9], "action": [1] * n, "logprob": [-1.0] * n, "state": state, "reward": reward}
            for state, reward, n in steps
        ]
        record = {"schema": "gxpo.rollouts/1", "group": group, "id": f"w{i}", "prompt": [2], "reward": outcome}
        ends = {"success": outcome > 0, "final_state": "success" if outcome > 0 else f"end {i}"} if final else {}
        records.append(record | {"turns": turns} | ends)
    return Forest.from_records(records)


def tokenwise(credit: dict[tuple[int, int], float]) -> list[float]:
    """The steps' credit on each of their tokens."""
    return [credit[i, k] for i, k in STEPS for _ in range(WALKS[i][2][k][2])]


def returns(discount: float) -> dict[tuple[int, int], float]:
    out = {}
    for i, (_, _, steps) in enumerate(WALKS):
        for k in range(len(steps)):
            out[i, k] = sum(discount**ahead * reward for ahead, (_, reward, _) in enumerate(steps[k:]))
    return out


def standard(x: float, others: list[float], ddof: int, eps: float = 1e-6, alone: float = 0.0) -> float:
    """(x - mean) / (std + eps) among the others, of which x is one; `alone` where it is the only one."""
    if len(others) == 1:
        return alone
    mean = math.fsum(others) / len(others)
    variance = math.fsum((y - mean) ** 2 for y in others) / (len(others) - ddof)
    return (x - mean) / (math.sqrt(variance) + eps)


def by_state(value: dict[tuple[int, int], float]) -> dict[tuple[int, int], float]:
    """Each step's value, standardised among the steps of its group that begin in its state."""
    out = {}
    for i, k in STEPS:
        local_walks = WALKS[i][0], WALKS[i][2][k][0]
        out[i, k] = standard(
            value[i, k], [value[j, m] for j, m in STEPS if (WALKS[j][0], WALKS[j][2][m][0]) == local_walks], 1
        )
    return out


def by_episode(across_steps: bool) -> list[float]:
    """Each attempt's outcome, standardised in its group, where an attempt counts once or once a step."""
    out = []
    for group, outcome, _ in WALKS:
        members = [r for g, r, steps in WALKS if g == group for _ in range(len(steps) if across_steps else 1)]
        out.append(standard(outcome, members, 1))
    return out


@pytest.mark.parametrize("unit", ["trajectory", "step"])
def test_gigpo(unit: str) -> None:
    """langfengQ/DrMAS@3b556f2 gigpo/core_gigpo.py in its mode `mean_std_norm`: an attempt counts once. Once a step in
    the file of the same name in zzj1111/alfworldauto@37aec78, as in the authors' first repository."""
    step, episode = by_state(returns(0.95)), by_episode(unit == "step")
    expected = tokenwise({(i, k): episode[i] + step[i, k] for i, k in STEPS})
    settings = {} if unit == "trajectory" else {"credit.unit": "step"}
    assert gxpo.method("gigpo", settings).advantages(walks()).tolist() == pytest.approx(expected, abs=1e-12)


def test_gigpo_of_one_attempt() -> None:
    """The same file: the mean of a single attempt is 0 and its std 1, that of a single step the step's own."""
    record = {"schema": "gxpo.rollouts/1", "group": "a", "id": "x", "prompt": [2], "reward": 3.0}
    turn = {"action": [1], "logprob": [-1.0], "state": "s", "reward": 1.0}
    forest = Forest.from_records([record | {"turns": [turn]}])
    assert gxpo.method("gigpo").advantages(forest).tolist() == [0.0]
    raw = gxpo.method("gigpo", {"credit.singleton": "raw"}).advantages(forest)
    assert raw.tolist() == pytest.approx([3.0 / (1 + 1e-6)], abs=1e-5)


@pytest.mark.parametrize("history", [0, 1, 2])
def test_hgpo(history: int) -> None:
    """zzj1111/alfworldauto@37aec78 recipe/hgpo/core_hgpo.py, without a level of whole attempts, which is its default:
    levels of 1 to `history` + 1 equal states in a row, weights 2, 3, 4. Its 1e-6 beside their sum is left out."""
    value, expected = returns(0.95), {}

    def states(step: tuple[int, int], length: int) -> tuple[str, ...] | None:
        i, k = step
        path = [state for state, *_ in WALKS[i][2]]
        return (WALKS[i][0], *path[k + 1 - length : k + 1]) if k + 1 >= length else None

    for step in STEPS:
        levels = []
        for length in range(1, history + 2):
            key = states(step, length)
            peers = [value[other] for other in STEPS if key is not None and states(other, length) == key]
            if len(peers) > 1:
                levels.append((length + 1.0, standard(value[step], peers, 0)))
        levels = [(w, a) for w, a in levels if a != 0]
        expected[step] = sum(w * a for w, a in levels) / sum(w for w, _ in levels) if levels else 0.0
    settings = {"credit.offset": 2, "credit.ignore": "zero", "credit.history": history}
    actual = gxpo.method("hgpo", settings).advantages(walks())
    assert actual.tolist() == pytest.approx(tokenwise(expected), abs=1e-12)
    assert sum(a != 0 for a in expected.values()) > 12


@pytest.mark.parametrize("form", ["distance", "progress"])
def test_graph_gpo(form: str) -> None:
    """zzj1111/alfworldauto@37aec78 recipe/GraphGPO/core_graph.py: fewest steps to "success" in the union of the group's
    attempts, the largest + 1 where no way leads there, and what the state that a step leads to is worth."""
    value = {}
    for group in ("a", "b"):
        edges = []
        for i, (g, outcome, steps) in enumerate(WALKS):
            path = [state for state, *_ in steps] + ["success" if outcome > 0 else f"end {i}"]
            edges += [((i, k), path[k], path[k + 1]) for k in range(len(steps)) if g == group]
        away, ring = {"success": 0}, {"success"}
        while ring:
            ring = {u for _, u, v in edges if v in ring and u not in away}
            away |= dict.fromkeys(ring, max(away.values()) + 1)
        lost = max(away.values()) + 1
        for step, u, v in edges:
            distance = away.get(v, lost) - (away.get(u, lost) - 1 if form == "progress" else 0)
            value[step] = 10 * 0.1**distance
    step, episode = by_state(value), by_episode(across_steps=False)
    expected = tokenwise({(i, k): episode[i] + step[i, k] for i, k in STEPS})
    settings = {"credit.add.graph.form": "progress"} if form == "progress" else {}
    actual = gxpo.method("graph_gpo", settings).advantages(walks(final=True))
    assert actual.tolist() == pytest.approx(expected, abs=1e-12)


# ---------------------------------------------------------------- trees
LEAVES = [  # prompt, tree, reward, tokens
    ("p", 0, 1.0, 2),
    ("p", 0, 0.0, 3),
    ("p", 0, 1.0, 1),
    ("p", 1, 0.0, 2),
    ("p", 1, 0.0, 1),
    ("q", 0, 0.3, 1),
    ("q", 0, 0.9, 2),
    ("q", 1, 1.0, 2),
]


def test_tree_grpo() -> None:
    """AMAP-ML/Tree-GRPO@90b1709 verl/trainer/ppo/ray_trainer_ts.py, estimator `tree` of its scripts: the sum of the
    scores standardised in the prompt and in the tree. A tree of one leaf has its raw reward there."""
    records = []
    for i, (prompt, tree, reward, n) in enumerate(LEAVES):
        record = {"schema": "gxpo.rollouts/1", "group": prompt, "id": f"l{i}", "prompt": [2], "reward": reward}
        records.append(record | {"turns": [{"action": [1] * n, "logprob": [-1.0] * n}], "info": {"tree": tree}})
    for is_alone, settings in ((False, {}), (True, {"credit.add.tree.singleton": "raw"})):
        expected = []
        for prompt, tree, reward, n in LEAVES:
            among = standard(reward, [r for p, _, r, _ in LEAVES if p == prompt], 1)
            inside = [r for p, t, r, _ in LEAVES if (p, t) == (prompt, tree)]
            expected += [among + standard(reward, inside, 1, alone=reward / (1 + 1e-6) if is_alone else 0.0)] * n
        actual = gxpo.method("tree_grpo", settings).advantages(Forest.from_records(records))
        assert actual.tolist() == pytest.approx(expected, abs=1e-12 if not is_alone else 1e-5)


# Each answer's tokens, its parent, how many of the parent's tokens it keeps, and its reward. Two answers begin at the
# prompt, and points after two tokens are in both trees; the last branches off twice removed.
BRANCHES = [
    ([1, 2, 3, 4, 5, 6], None, 0, 1.0),
    ([1, 2, 7, 8, 9], 0, 2, 0.0),
    ([1, 2, 3, 4, 10], 0, 4, 1.0),
    ([11, 12, 13, 14], None, 0, 0.0),
    ([11, 12, 15], 3, 2, 1.0),
    ([1, 2, 7, 8, 16, 17], 1, 4, 0.0),
]


@pytest.mark.parametrize("keyed_by", ["position", "node"])
def test_rose(keyed_by: str) -> None:
    """ZiqiZhao1/ROSE-rl@2142dc7 verl/trainer/ppo/core_algos.py, `grpo_iterative_branching`: points of a prompt at equal
    positions are one. By the node they are one where what was said before is equal."""
    records, points = [], []
    for i, (tokens, parent, kept_value, reward) in enumerate(BRANCHES):
        record = {"schema": "gxpo.rollouts/1", "group": "p", "id": f"b{i}", "reward": reward}
        begin = {"prompt": [2]} if parent is None else {"fork": {"of": f"b{parent}", "turn": 0, "token": kept_value}}
        rest = tokens[kept_value:]
        records.append(record | begin | {"turns": [{"action": rest, "logprob": [-1.0] * len(rest)}]})
    for tokens, *_ in BRANCHES:  # where this answer or one that shares its beginning so far branches off
        points.append(
            {0}
            | {
                kept_value
                for other, _, kept_value, _ in BRANCHES
                if kept_value and other[:kept_value] == tokens[:kept_value]
            }
        )
    values: dict[object, list[float]] = {}
    for (tokens, *_, reward), mine in zip(BRANCHES, points, strict=True):
        for k in mine:
            values.setdefault(k if keyed_by == "position" else tuple(tokens[:k]), []).append(reward)
    expected = []
    for (tokens, *_, reward), mine in zip(BRANCHES, points, strict=True):
        for t in range(len(tokens)):
            ends = [max(k for k in mine if k <= t), min((k for k in mine if k > t), default=None)]
            at = [None if k is None else (k if keyed_by == "position" else tuple(tokens[:k])) for k in ends]
            V = [reward if key is None else math.fsum(values[key]) / len(values[key]) for key in at]
            expected.append(V[1] - V[0])
    actual = gxpo.method("rose", {"credit.branch_key": keyed_by}).advantages(Forest.from_records(records))
    assert actual.tolist() == pytest.approx(expected, abs=1e-12)
