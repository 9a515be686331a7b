"""NP-hard optimisation tasks: instances, feasibility, and greedy heuristics that answers are compared with."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from gxpo.base.errors import TaskError
from gxpo.environments.tasks.source import Author, GeneratedTasks, check_options, exact
from gxpo.parts.protocols import Task

ANSWER = re.compile(r"[^#]*#([0-9]+(?:,[0-9]+)*)")
Numbers = Sequence[Sequence[int]]


class Problem(NamedTuple):
    """Kind of problem: how instances are made and valued.

    make      (random, size) -> (instance, prompt)
    value     (instance, answer) -> value of a feasible answer; None where it is not feasible
    greedy    instance -> the heuristic's answer
    minimise  True if a smaller value is better
    """

    make: Callable[[np.random.Generator, int], tuple[dict[str, Any], str]]
    value: Callable[[Mapping[str, Any], Sequence[int]], int | None]
    greedy: Callable[[Mapping[str, Any]], list[int]]
    minimise: bool = False


# ---------------------------------------------------------------- knapsack: items 1.. of (weight, value)
def _knapsack(random: np.random.Generator, size: int) -> tuple[dict[str, Any], str]:
    items = random.integers(1, 10, size=(size, 2)).tolist()
    # half of the weight fits, and any single item does: some answer is always feasible and worth more than 0
    capacity = max(sum(w for w, _ in items) // 2, max(w for w, _ in items))
    return {"items": items, "capacity": capacity}, f"k{capacity}:{_pairs(items)}="


def _knapsack_value(problem: Mapping[str, Any], answer: Sequence[int]) -> int | None:
    items = problem["items"]
    if not _distinct(answer, len(items)) or sum(items[i - 1][0] for i in answer) > problem["capacity"]:
        return None
    return sum(items[i - 1][1] for i in answer)


def _by_density(problem: Mapping[str, Any]) -> list[int]:
    """Greedy knapsack: items in order of value per weight, each if it fits."""
    items, room, items_taken = problem["items"], problem["capacity"], []
    for i in sorted(range(len(items)), key=lambda i: (-items[i][1] / items[i][0], i)):
        if items[i][0] <= room:
            room -= items[i][0]
            items_taken.append(i + 1)
    return sorted(items_taken)


# ---------------------------------------------------------------- maximum independent set: vertices 1.. and edges
def _graph(random: np.random.Generator, size: int) -> tuple[dict[str, Any], str]:
    edges = [[i, j] for i in range(1, size + 1) for j in range(i + 1, size + 1) if random.random() < 0.4]
    return {"vertices": size, "edges": edges}, f"i{size}:{_pairs(edges)}="


def _independent_value(problem: Mapping[str, Any], answer: Sequence[int]) -> int | None:
    vertices = set(answer)
    if not _distinct(answer, problem["vertices"]) or any(a in vertices and b in vertices for a, b in problem["edges"]):
        return None
    return len(answer)


def _by_degree(problem: Mapping[str, Any]) -> list[int]:
    """Greedy independent set: again and again the candidate with the fewest neighbours among the candidates."""
    neighbours: dict[int, set[int]] = {v: set() for v in range(1, problem["vertices"] + 1)}
    for a, b in problem["edges"]:
        neighbours[a].add(b)
        neighbours[b].add(a)
    candidates, vertices = set(neighbours), []
    while candidates:
        v = min(candidates, key=lambda v: (len(neighbours[v] & candidates), v))
        vertices.append(v)
        candidates -= neighbours[v] | {v}
    return sorted(vertices)


# ---------------------------------------------------------------- travelling salesman: points, distances along the axes
def _points(random: np.random.Generator, size: int) -> tuple[dict[str, Any], str]:
    places = random.choice(100, size=size, replace=False)
    points = [[int(p) // 10, int(p) % 10] for p in places]
    return {"points": points}, f"t{size}:{_pairs(points)}="


def _distance(a: Sequence[int], b: Sequence[int]) -> int:
    return abs(a[0] - b[0]) + abs(a[1] - b[1])


def _tour_value(problem: Mapping[str, Any], answer: Sequence[int]) -> int | None:
    points = problem["points"]
    if sorted(answer) != list(range(1, len(points) + 1)):
        return None
    return sum(_distance(points[a - 1], points[b - 1]) for a, b in zip(answer, [*answer[1:], answer[0]], strict=True))


def _nearest(problem: Mapping[str, Any]) -> list[int]:
    """Nearest-neighbour tour from the first point."""
    points, tour, open_points = problem["points"], [1], set(range(2, len(problem["points"]) + 1))
    while open_points:
        tour.append(min(open_points, key=lambda i: (_distance(points[tour[-1] - 1], points[i - 1]), i)))
        open_points.discard(tour[-1])
    return tour


PROBLEMS: Mapping[str, Problem] = {
    "knapsack": Problem(_knapsack, _knapsack_value, _by_density),
    "independent_set": Problem(_graph, _independent_value, _by_degree),
    "tsp": Problem(_points, _tour_value, _nearest, minimise=True),
}


def _pairs(pairs: Numbers) -> str:
    return ",".join(f"{a}-{b}" for a, b in pairs)


def _distinct(answer: Sequence[int], n: int) -> bool:
    return len(set(answer)) == len(answer) and all(1 <= i <= n for i in answer)


def quality(value: int, heuristic: int, *, minimise: bool) -> float:
    """Ratio of a feasible answer's value to the heuristic's, above 1 if the answer is better; both values above 0.

    >>> quality(12, 10, minimise=True), quality(9, 10, minimise=False)
    (0.8333333333333334, 0.9)
    """
    return heuristic / value if minimise else value / heuristic


def score(text: str, task: Task) -> dict[str, float]:
    """Score an answer: any working, then `#` and numbers. `feasible`; `ratio`: its `quality`, 0 where it is not
    feasible; `correct`: the heuristic's value or better."""
    match = ANSWER.fullmatch(text.strip())
    problem = PROBLEMS[task.info["kind"]]
    value = None if match is None else problem.value(task.info["problem"], [int(x) for x in match[1].split(",")])
    ratio = 0.0 if value is None else quality(value, task.info["heuristic"], minimise=problem.minimise)
    return {"correct": float(ratio >= 1.0), "feasible": float(value is not None), "ratio": ratio}


@dataclass
class NPHard(GeneratedTasks):
    """`k9:2-7,5-4,...=` -> `#1,3`: an instance of `kind` with `size` items, vertices or points.

    kind  "knapsack": capacity, then weight-value of each item; the items taken. "independent_set": number of vertices,
          then edges; vertices without an edge between them. "tsp": points; a round tour, distances along the axes

    An answer is measured by a greedy heuristic's value: by density, by degree, by nearest neighbour.
    Source: NP-Engine, arXiv 2510.16476, of whose ten kinds these are three, in a short notation of our own.
    """

    seed: int = 0
    kind: str = "knapsack"
    size: int = 5

    name: ClassVar[str] = "np_hard"
    scorer_name: ClassVar[str] = "np_hard"
    scorer_trusted: ClassVar[bool] = True
    scorer: ClassVar = staticmethod(score)
    options: ClassVar[Mapping[str, Any]] = {"kind": str, "size": int}

    def __post_init__(self) -> None:
        check_options(self.name, {name: getattr(self, name) for name in self.options}, self.options)
        if self.kind not in PROBLEMS:
            raise TaskError(f"task 'np_hard': kind must be one of {', '.join(PROBLEMS)}, not {self.kind!r}")
        if not 3 <= self.size <= 50:
            raise TaskError(f"task 'np_hard': size must be from 3 to 50, not {self.size}")

    def propose(self, random: np.random.Generator) -> Task:
        generator = PROBLEMS[self.kind]
        problem, prompt = generator.make(random, self.size)
        greedy = generator.greedy(problem)
        info = {"kind": self.kind, "problem": problem, "heuristic": generator.value(problem, greedy)}
        return Task(f"np_hard/{prompt}", prompt, ",".join(map(str, greedy)), info)

    def worked_example(self, task: Task, author: Author = exact) -> str:
        """Answer of the heuristic."""
        return f"#{task.answer}"
