"""Choice of an ensemble of models: focal diversity of their errors, accuracy of their majority."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

Verdicts = Sequence[Sequence[float]]


def generalized_diversity(verdicts: Verdicts) -> float:
    """Generalized diversity 1 - p2 / p1: 0 if models err on the same tasks, 1 if no two err on one (or none errs).

    verdicts  [S][tasks] of S models, right where 1 or more
    p1        probability that a model drawn at random errs, p2 that two drawn without replacement do: with pi_i the
              share of tasks on which i of them err, sum i / S pi_i and sum i (i - 1) / (S (S - 1)) pi_i

    Source: Partridge and Krzanowski 1997, as in MARL-Focal (arXiv 2502.04492).
    """
    size, tasks = _shape(verdicts)
    errors = [sum(row[t] < 1 for row in verdicts) for t in range(tasks)]
    once = sum(i / size for i in errors)
    twice = sum(i * (i - 1) / (size * (size - 1)) for i in errors)
    return 1 - twice / once if once else 1.0


def focal_diversity(verdicts: Verdicts) -> float:
    """Mean over models of the generalized diversity on the tasks on which that model errs; 1 for one without errors.

    The counts of errors begin at 1: in the released code the list of shares begins at 0 errors where every count occurs
    on the samples, which shifts it by one unless they are filtered by the focal model before.

    Source: MARL-Focal (arXiv 2502.04492) and its code, sftekin/rl-focal.

    >>> round(focal_diversity([[1, 1, 0, 0, 1, 0], [1, 0, 0, 1, 1, 0], [1, 0, 1, 1, 0, 0]]), 5)
    0.31746
    """
    _, tasks = _shape(verdicts)
    diversities = []
    for focal in verdicts:
        failed_tasks = [t for t in range(tasks) if focal[t] < 1]
        diversities.append(
            generalized_diversity([[row[t] for t in failed_tasks] for row in verdicts]) if failed_tasks else 1.0
        )
    return sum(diversities) / len(diversities)


def best_subset(verdicts: Verdicts, size: int, weight: float = 0.5) -> tuple[int, ...]:
    """Choose the `size` models with the largest weight * focal diversity + (1 - weight) * accuracy of their majority.

    A majority is right where more than half of them are. Ties go to the first in order. All subsets are tried: for tens
    of models.
    """
    models, tasks = _shape(verdicts)
    if not 2 <= size <= models:
        raise ValueError(f"size must be from 2 to {models}, not {size}")
    if not 0 <= weight <= 1:
        raise ValueError(f"weight must be from 0 to 1, not {weight}")

    def fitness(subset: tuple[int, ...]) -> float:
        rows = [verdicts[m] for m in subset]
        # A tie is no majority.
        right = sum(2 * sum(row[t] >= 1 for row in rows) > size for t in range(tasks)) / tasks
        return weight * focal_diversity(rows) + (1 - weight) * right

    best_fitness, best_models = -math.inf, ()
    for subset in combinations(range(models), size):
        # A tolerance, since fitness is a sum of floats: ties must go to the first subset on every machine.
        if (value := fitness(subset)) > best_fitness + 1e-12:
            best_fitness, best_models = value, subset
    return best_models


def _shape(verdicts: Verdicts) -> tuple[int, int]:
    sizes = {len(row) for row in verdicts}
    if len(verdicts) < 2 or len(sizes) != 1 or 0 in sizes:
        raise ValueError("verdicts are of at least 2 models, on the same tasks, at least one")
    return len(verdicts), sizes.pop()
