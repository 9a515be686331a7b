"""Properties of advantage formulas, tested on synthetic rewards and groups from a fixed seed.

Each property is a function of (call, golden file, tolerance) that raises AssertionError where it does not hold;
`call(rewards, groups, constants, fields)` returns advantages. A golden file lists the properties of its formula.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gxpo.conformance.golden import Golden, close

Call = Callable[[Sequence[float | None], Sequence[int], Mapping[str, Any], Mapping[str, Any]], list[float]]
SIZES = (4, 3, 5, 2)


@dataclass(frozen=True)
class Batch:
    """Synthetic rollouts. `fields` are lists as long as `rewards`; `components` has such a list for each reward."""

    rewards: tuple[float | None, ...]
    groups: tuple[int, ...]
    constants: Mapping[str, Any]
    fields: Mapping[str, Any]

    def take(self, rows: Sequence[int]) -> Batch:
        """Select rows, in the given order."""

        def cut(name: str, value: Any) -> Any:
            if name == "weights":
                return value
            return [cut("", column) for column in value] if name == "components" else [value[i] for i in rows]

        return Batch(
            tuple(self.rewards[i] for i in rows),
            tuple(self.groups[i] for i in rows),
            self.constants,
            {name: cut(name, value) for name, value in self.fields.items()},
        )

    def through(self, call: Call) -> list[float]:
        return call(self.rewards, self.groups, self.constants, self.fields)


def _unit_vector(rng: random.Random) -> list[float]:
    angle = rng.random() * math.pi / 2
    return [math.cos(angle), math.sin(angle)]


FIELDS: Mapping[str, Callable[[random.Random], Any]] = {
    "lengths": lambda rng: rng.randint(1, 9),
    "baseline": lambda rng: rng.randint(0, 8) / 8,
    "reference_rewards": lambda rng: rng.randint(0, 8) / 8,
    "mean_logprob": lambda rng: -0.05 - 2 * rng.random(),
    "mean_entropy": lambda rng: 0.1 + rng.random(),
    "clusters": lambda rng: rng.randrange(3),
    "embeddings": _unit_vector,
}


def synthetic_batch(golden: Golden, seed: str, sizes: Sequence[int] = SIZES) -> Batch:
    """Make interleaved groups of unequal size and unordered ids; every group has unequal rewards."""
    rng = random.Random(f"{golden.method}/{seed}")
    ids = [g for g, size in zip(rng.sample(range(50), len(sizes)), sizes, strict=True) for _ in range(size)]
    rng.shuffle(ids)
    n, rewards = len(ids), [0.0] * len(ids)
    for group in set(ids):
        rows = [i for i, g in enumerate(ids) if g == group]
        for i in rows:
            rewards[i] = float(rng.randrange(2)) if golden.inputs == "binary" else rng.randint(-12, 12) / 8
        # a group of equal rewards, by chance, has advantage 0 under any formula and would test nothing
        rewards[rows[0]], rewards[rows[-1]] = 1.0, 0.0
    fields: dict[str, Any] = {k: [FIELDS[k](rng) for _ in range(n)] for k in golden.fields if k in FIELDS}
    if "components" in golden.fields:
        fields["components"] = [rewards, [float(rng.randrange(2)) for _ in range(n)]]
        fields["weights"] = [1.0, 0.5]
        rewards = [a + 0.5 * b for a, b in zip(*fields["components"], strict=True)]
    return Batch(tuple(rewards), tuple(ids), golden.constants, fields)


def order(call: Call, golden: Golden, tolerance: float) -> None:
    """The order of the rows does not matter."""
    batch = synthetic_batch(golden, "order")
    rows = list(range(len(batch.rewards)))
    random.Random(1).shuffle(rows)
    advantages = batch.through(call)
    close(batch.take(rows).through(call), [advantages[i] for i in rows], tolerance, "rows in another order")


def relabel(call: Call, golden: Golden, tolerance: float) -> None:
    """Names of groups mean nothing."""
    batch = synthetic_batch(golden, "relabel")
    renamed = replace(batch, groups=tuple(1000 - 7 * g for g in batch.groups))
    close(renamed.through(call), batch.through(call), tolerance, "groups with other ids")


def separate(call: Call, golden: Golden, tolerance: float) -> None:
    """A group has the same advantages alone as among others."""
    batch = synthetic_batch(golden, "separate")
    advantages = batch.through(call)
    for group in sorted(set(batch.groups)):
        rows = [i for i, g in enumerate(batch.groups) if g == group]
        close(batch.take(rows).through(call), [advantages[i] for i in rows], tolerance, f"group {group} alone")


def unscored(call: Call, golden: Golden, tolerance: float) -> None:
    """A row without a reward has advantage 0, and does not change the others."""
    batch = synthetic_batch(golden, "unscored")
    largest_group = max(set(batch.groups), key=batch.groups.count)
    unscored_rows = [i for i, g in enumerate(batch.groups) if g == largest_group][1:3]
    scored_rows = [i for i in range(len(batch.rewards)) if i not in unscored_rows]
    advantages = replace(
        batch, rewards=tuple(None if i in unscored_rows else r for i, r in enumerate(batch.rewards))
    ).through(call)
    close([advantages[i] for i in unscored_rows], [0.0] * len(unscored_rows), 0.0, "unscored rows")
    close(
        [advantages[i] for i in scored_rows],
        batch.take(scored_rows).through(call),
        tolerance,
        "rows beside unscored ones",
    )


def equal(call: Call, golden: Golden, tolerance: float) -> None:
    """Groups of equal rewards have advantage 0, also where the reward is no binary fraction."""
    values = (0.0, 1.0) if golden.inputs == "binary" else (0.1, 0.3, 0.7, 1 / 3)
    for size in (2, 3, 7, 8):
        batch = synthetic_batch(golden, f"equal {size}", (size,) * 2)
        for value in values:
            rewards = tuple(
                value if g == batch.groups[0] else r for g, r in zip(batch.groups, batch.rewards, strict=True)
            )
            advantages = replace(batch, rewards=rewards).through(call)
            equal_group = [a for a, g in zip(advantages, batch.groups, strict=True) if g == batch.groups[0]]
            close(equal_group, [0.0] * size, tolerance, f"{size} rewards of {value:.4g}")


def one(call: Call, golden: Golden, tolerance: float) -> None:
    """A group of one has advantage 0."""
    batch = synthetic_batch(golden, "one", (1, 4))
    single_rows = [i for i, g in enumerate(batch.groups) if batch.groups.count(g) == 1]
    for value in (0.0, 1.0):
        rewards = tuple(value if i in single_rows else r for i, r in enumerate(batch.rewards))
        advantages = replace(batch, rewards=rewards).through(call)
        close([advantages[i] for i in single_rows], [0.0], tolerance, f"one reward of {value}")


def zero_sum(call: Call, golden: Golden, tolerance: float) -> None:
    """A group's advantages sum to 0."""
    batch = synthetic_batch(golden, "zero_sum")
    advantages = batch.through(call)
    for group in sorted(set(batch.groups)):
        total = sum(a for a, g in zip(advantages, batch.groups, strict=True) if g == group)
        close([total], [0.0], tolerance * batch.groups.count(group), f"sum over group {group}")


def shift(call: Call, golden: Golden, tolerance: float) -> None:
    """A constant added to every reward changes nothing."""
    batch = synthetic_batch(golden, "shift")
    shifted = replace(batch, rewards=tuple(r + 3 for r in batch.rewards if r is not None))
    close(shifted.through(call), batch.through(call), tolerance, "rewards + 3")


def scale(call: Call, golden: Golden, tolerance: float) -> None:
    """Without eps, rewards times a positive number change nothing."""
    batch = synthetic_batch(golden, "scale")
    batch = replace(batch, constants={k: 0.0 if k == "eps" else v for k, v in batch.constants.items()})
    scaled = replace(batch, rewards=tuple(2.5 * r for r in batch.rewards if r is not None))
    close(scaled.through(call), batch.through(call), tolerance, "rewards x 2.5")


def homogeneous(call: Call, golden: Golden, tolerance: float) -> None:
    """Rewards times a number: advantages times that number."""
    batch = synthetic_batch(golden, "homogeneous")
    scaled = replace(batch, rewards=tuple(2.5 * r for r in batch.rewards if r is not None))
    close(scaled.through(call), [2.5 * a for a in batch.through(call)], tolerance, "rewards x 2.5")


PROPERTIES: Mapping[str, Callable[[Call, Golden, float], None]] = {
    f.__name__: f for f in (order, relabel, separate, unscored, equal, one, zero_sum, shift, scale, homogeneous)
}
