"""What sorts groups: reward spread, zero signal, disagreement of two methods, residues; and which ones a page shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from gxpo.explain.outlook import Outlook
from gxpo.forest import grouped
from gxpo.forest.forest import Forest

Floats = NDArray[np.float64]
MOST_ROLLOUTS, MOST_TOKENS = 10_000, 1_500_000  # on one page
RESIDUE = 1e-9  # an advantage above it in a group of equal rewards is a residue of rounding


@dataclass
class GroupFigures:
    """Columns over groups, in the order of the file.

    low, high    smallest and largest reward; nan: no rollout is scored
    residue      largest recorded |advantage| of a group of several rollouts whose rewards are equal; 0: none
    zero_signal  method -> no token of the group has an advantage
    disagreement (method, method) -> mean over the group's tokens of the difference between the two advantages, each in
                 units of its own root mean square over the step
    """

    names: list[str]
    size: NDArray[np.int64]
    tokens: NDArray[np.int64]
    low: Floats
    high: Floats
    mean: Floats
    residue: Floats
    zero_signal: dict[str, NDArray[np.bool_]] = field(default_factory=dict)
    disagreement: dict[tuple[str, str], Floats] = field(default_factory=dict)

    @property
    def spread(self) -> Floats:
        return self.high - self.low


def figures(forest: Forest, looks: Sequence[Outlook], recorded: Floats) -> GroupFigures:
    """The figures of all groups under the methods that could be applied."""
    group = forest.ids("group", axis="R")
    n = int(group.max()) + 1 if len(group) else 0
    own = group.numpy()

    def each(x: torch.Tensor) -> Floats:
        out = np.full(n, np.nan)
        out[own] = x.numpy()
        return out

    outcome, scored = forest.outcome.nan_to_num(nan=0.0), forest.scored
    some = grouped.count(group, scored) > 0
    low, high, mean = (
        each(torch.where(some, f(outcome, group, scored), torch.nan)) for f in (grouped.min, grouped.max, grouped.mean)
    )
    biggest = np.zeros(n)
    np.maximum.at(biggest, own, np.nan_to_num(np.abs(recorded)))
    equal = high - low <= grouped.DEGENERATE * np.maximum(abs(high), abs(low))
    names = [""] * n
    for g, name in zip(own.tolist(), forest.group, strict=True):
        names[g] = name
    per_token = group[forest.path_trajectory]
    tokens = torch.bincount(per_token, minlength=n).numpy()
    found = GroupFigures(
        names, np.bincount(own, minlength=n), tokens, low, high, mean,
        np.where(equal & (biggest > RESIDUE) & (np.bincount(own, minlength=n) > 1), biggest, 0.0),
    )  # fmt: skip
    known = [x for x in looks if x.credit is not None]
    for x in known:
        assert x.zero_signal is not None
        found.zero_signal[x.name] = x.zero_signal.numpy()
    pairs = [(a, b) for i, a in enumerate(known) for b in known[i + 1 :]]
    for a, b in pairs if len(known) <= 3 else [(known[0], b) for b in known[1:]]:
        found.disagreement[a.name, b.name] = _distance(forest, a, b, per_token, n)
    return found


def _distance(forest: Forest, a: Outlook, b: Outlook, group: torch.Tensor, n: int) -> Floats:
    trained = forest.path_trainable
    far = (_in_units(a, trained) - _in_units(b, trained)).abs() * trained
    count = torch.bincount(group[trained], minlength=n)
    return (torch.bincount(group, far, n) / count.clamp_min(1)).numpy()


def _in_units(x: Outlook, trained: torch.Tensor) -> torch.Tensor:
    assert x.credit is not None
    size = x.credit[trained].square().mean().sqrt() if bool(trained.any()) else torch.tensor(0.0)
    return x.credit / size if size > 0 else x.credit


def chosen(f: GroupFigures, rollouts: int = MOST_ROLLOUTS, tokens: int = MOST_TOKENS) -> NDArray[np.int64]:
    """Groups of a page, in the order of the file: all of them where they fit, else in turn those of the widest spread,
    those on which methods disagree most, zero-signal and other ones evenly through the file, until the page is full."""
    n = len(f.names)
    if f.size.sum() <= rollouts and f.tokens.sum() <= tokens:
        return np.arange(n)
    first = next(iter(f.zero_signal.values()), f.spread == 0)
    queues = [np.argsort(-np.nan_to_num(f.spread), kind="stable")]
    queues += [np.argsort(-d, kind="stable") for d in f.disagreement.values()]
    queues += [_even(np.flatnonzero(first)), _even(np.flatnonzero(~first))]
    taken: dict[int, None] = {}
    room, left = rollouts, tokens
    heads = [iter(q.tolist()) for q in queues if len(q)]
    while heads:
        for head in list(heads):
            g = next((g for g in head if g not in taken), None)
            if g is None:
                heads.remove(head)
            elif f.size[g] <= room and f.tokens[g] <= left:
                taken[g] = None
                room, left = room - int(f.size[g]), left - int(f.tokens[g])
    return np.array(sorted(taken or {0: None}), dtype=np.int64)


def _even(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """The rows in an order of which every beginning is spread evenly: by the bit-reversed place."""
    bits = max(len(rows) - 1, 1).bit_length()
    place = [int(f"{i:0{bits}b}"[::-1], 2) for i in range(len(rows))]
    return rows[np.argsort(place, kind="stable")]
