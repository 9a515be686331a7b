"""GRAFT (arXiv 2609.28963) against its equations 5 to 11, worked out with dictionaries in plain Python."""

from __future__ import annotations

import statistics
from collections import defaultdict

import pytest

import gxpo
from gxpo.parts.definition import show

GAMMA = 0.99
# (outcome, states): s is left five times, t three; u, v and w by one trajectory each; one walks in a circle
ROWS = [
    (1.0, ["s", "t", "u"]),
    (0.0, ["s", "t"]),
    (0.0, ["s", "v", "s", "t"]),
    (1.0, ["s", "w"]),
]


def walks(rows):
    turns = [[{"action": [3], "state": state} for state in states] for _, states in rows]
    records = [
        {"schema": "gxpo.rollouts/1", "group": "a", "id": str(i), "turns": turns[i], "reward": outcome}
        for i, (outcome, _) in enumerate(rows)
    ]
    return gxpo.Forest.from_records(records)


def by_the_paper(lam):
    """Credit of each step: values by sweeps (eq. 5), TD (8), the sum over the graph (9, 10), z-scores (11)."""
    edges = []  # (from, to, step), the sink of each trajectory its own
    for i, (_, states) in enumerate(ROWS):
        edges += [(u, v, (i, t)) for t, (u, v) in enumerate(zip(states, [*states[1:], i], strict=True))]
    out = defaultdict(list)
    for u, v, step in edges:
        out[u].append((v, step))
    value = {i: outcome for i, (outcome, _) in enumerate(ROWS)} | dict.fromkeys(out, 0.0)
    for _ in range(4000):
        for u, leaving in out.items():
            value[u] = sum(GAMMA * value[v] for v, _ in leaving) / len(leaving)
    td = {step: GAMMA * value[v] - value[u] for u, v, step in edges}
    credit = {}
    for _, v, (i, t) in edges:
        total, local_values = td[i, t], {v}
        for k in range(1, len(ROWS[i][1]) - t + 1):
            reached = [(to, step) for u in local_values for to, step in out.get(u, ())]
            if not reached:
                break
            total += (GAMMA * lam) ** k * sum(td[step] for _, step in reached) / len(reached)
            local_values = {to for to, _ in reached}
        credit[i, t] = total
    scaled = {}
    for u, _, step in edges:
        group = [credit[other] for _, other in out[u]]
        is_alone = len(group) == 1
        mean, std = (0.0, abs(group[0])) if is_alone else (statistics.mean(group), statistics.stdev(group))
        scaled[step] = (credit[step] - mean) / (std + 1e-6)
    return value, td, credit, [scaled[i, t] for i, (_, states) in enumerate(ROWS) for t in range(len(states))]


def test_the_sum_over_the_graph_adds_nothing():
    for lam in (0.6, 0.95, 1.0):
        _, td, credit, _ = by_the_paper(lam)
        assert credit == pytest.approx(td, abs=1e-12)


def test_credit_equals_the_papers():
    forest = walks(ROWS)
    actual = gxpo.method("graft").advantages(forest)
    *_, expected = by_the_paper(0.95)
    assert actual.tolist() == pytest.approx(expected, abs=1e-4)  # eps 1e-6 on values that are 0.99 times as large
    assert [actual[k].item() for k in (2, 6, 10)] == [0.0] * 3  # u, v and w: nobody else left them
    scaled = gxpo.method("graft", {"credit.scale": "none"}).advantages(forest)
    value, td, *_ = by_the_paper(0.95)
    expected = [td[i, t] / GAMMA for i, (_, states) in enumerate(ROWS) for t in range(len(states))]
    assert scaled.tolist() == pytest.approx(expected, abs=1e-9)
    assert value["s"] == pytest.approx(GAMMA * sum(value[v] for v in ("t", "t", "v", "t", "w")) / 5)


def test_failed_groups_learn_nothing_and_the_ratio_is_the_steps():
    forest = walks([(0.0, states) for _, states in ROWS])
    m = gxpo.method("graft")
    assert not m.advantages(forest).any()
    assert show(m.terms["policy"].ratio) == "turn"
