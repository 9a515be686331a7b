"""NP-hard problems: what is feasible, what it is worth, and that the heuristic's own answer has ratio 1."""

from __future__ import annotations

import itertools

import pytest

from gxpo.base.errors import TaskError
from gxpo.environments.tasks import make
from gxpo.environments.tasks.np_hard import PROBLEMS, quality, score
from gxpo.parts.protocols import Task


def task(kind, problem, heuristic):
    return Task("t", "", "", {"kind": kind, "problem": problem, "heuristic": heuristic})


def test_the_numbers_of_the_card():
    assert quality(12, 10, minimise=True) == pytest.approx(0.833333, abs=1e-6)
    assert quality(9, 10, minimise=False) == pytest.approx(0.9)


KNAPSACK = task("knapsack", {"items": [[2, 3], [5, 4], [4, 6]], "capacity": 7}, 9)
EDGES = task("independent_set", {"vertices": 4, "edges": [[1, 2], [2, 3], [3, 4]]}, 2)
SQUARE = task("tsp", {"points": [[0, 0], [0, 2], [2, 2], [2, 0]]}, 10)


@pytest.mark.parametrize(
    ("given", "text", "feasible", "ratio"),
    [
        (KNAPSACK, "2+4#1,3", 1, 1.0),  # weight 6, value 9
        (KNAPSACK, "#1,2", 1, 7 / 9),  # weight 7
        (KNAPSACK, "#2,3", 0, 0.0),  # weight 9
        (KNAPSACK, "#1,1", 0, 0.0),
        (KNAPSACK, "#4", 0, 0.0),
        (KNAPSACK, "1,3", 0, 0.0),
        (EDGES, "#1,4", 1, 1.0),
        (EDGES, "#1", 1, 0.5),
        (EDGES, "#1,2", 0, 0.0),
        (SQUARE, "#1,2,3,4", 1, 10 / 8),  # round the square: better than a heuristic's 10
        (SQUARE, "#1,3,2,4", 1, 10 / 12),  # 4 + 2 + 4 + 2
        (SQUARE, "#1,2,3", 0, 0.0),
    ],
)
def test_answers(given, text, feasible, ratio):
    actual = score(text, given)
    assert actual["feasible"] == feasible and actual["ratio"] == pytest.approx(ratio)
    assert actual["correct"] == float(ratio >= 1)


def best(kind, problem, n):
    """The optimum by trying everything."""
    answers = itertools.permutations(range(1, n + 1)) if kind == "tsp" else (
        c for size in range(1, n + 1) for c in itertools.combinations(range(1, n + 1), size))  # fmt: skip
    values = [v for a in answers if (v := PROBLEMS[kind].value(problem, a)) is not None]
    return min(values) if kind == "tsp" else max(values)


@pytest.mark.parametrize("kind", list(PROBLEMS))
def test_heuristics_are_feasible_and_no_better_than_the_optimum(kind):
    source = make("np_hard", seed=3, options={"kind": kind, "size": 5})
    tasks = source.draw(20, 0)
    assert [t.id for t in tasks[:5]] == [t.id for t in source.draw(5, 0)] and len({t.id for t in tasks}) == 20
    for t in tasks:
        assert score(source.worked_example(t), t) == {"correct": 1.0, "feasible": 1.0, "ratio": 1.0}
        optimum = best(kind, t.info["problem"], 5)
        assert quality(optimum, t.info["heuristic"], minimise=kind == "tsp") >= 1


def test_bad_options():
    for options, message in (
        ({"kind": "sat"}, "kind must be one of knapsack"),
        ({"size": 2}, "size must be from 3 to 50"),
    ):
        with pytest.raises(TaskError, match=message):
            make("np_hard", seed=0, options=options)
