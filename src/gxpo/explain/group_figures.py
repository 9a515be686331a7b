"""Figures that a page sorts groups by (reward spread, zero signal, disagreement, residue), and the choice of groups."""

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
RESIDUE = (1e-9, 0.1)  # an advantage between them in a group of equal rewards is a residue of rounding


@dataclass
class GroupFigures:
    """Columns over groups, in the order of the file.

    low, high    smallest and largest reward; nan: no rollout is scored
    residue      largest recorded |advantage| of a group of several rollouts whose rewards are equal; 0: none
    zero_signal  method -> True if no token of the group has an advantage
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


def figures(forest: Forest, looks: Sequence[Outlook], recorded_advantage: Floats) -> GroupFigures:
    """Compute the figures of all groups under the methods that could be applied."""
    group = forest.ids("group", axis="R")
    n = int(group.max()) + 1 if len(group) else 0
    group_R = group.numpy()

    def per_group(x: torch.Tensor) -> Floats:
        out = np.full(n, np.nan)
        out[group_R] = x.numpy()
        return out

    outcome, is_scored = forest.outcome.nan_to_num(nan=0.0), forest.scored
    has_scored = grouped.count(group, is_scored) > 0
    low, high, mean = (
        per_group(torch.where(has_scored, f(outcome, group, is_scored), torch.nan))
        for f in (grouped.min, grouped.max, grouped.mean)
    )
    # A small recorded advantage in a group of equal rewards is a residue of rounding; a large one is the method's own,
    # as of imitated answers. A lone rollout has no group to be equal with, and raw rewards are no residue there.
    largest_recorded = np.zeros(n)
    np.maximum.at(largest_recorded, group_R, np.nan_to_num(np.abs(recorded_advantage)))
    is_equal = high - low <= grouped.DEGENERATE * np.maximum(abs(high), abs(low))
    size = np.bincount(group_R, minlength=n)
    is_residue = is_equal & (largest_recorded > RESIDUE[0]) & (largest_recorded < RESIDUE[1]) & (size > 1)
    names = [""] * n
    for g, name in zip(group_R.tolist(), forest.group, strict=True):
        names[g] = name
    group_P = group[forest.path_trajectory]
    tokens_G = torch.bincount(group_P, minlength=n).numpy()
    group_figures = GroupFigures(
        names, size, tokens_G, low, high, mean,
        np.where(is_residue, largest_recorded, 0.0),
    )  # fmt: skip
    applied_looks = [x for x in looks if x.credit is not None]
    for x in applied_looks:
        assert x.zero_signal is not None
        group_figures.zero_signal[x.name] = x.zero_signal.numpy()
    # all pairs of up to three methods; of more, each against the first, or a page would have a column for each pair
    pairs = [(a, b) for i, a in enumerate(applied_looks) for b in applied_looks[i + 1 :]]
    for a, b in pairs if len(applied_looks) <= 3 else [(applied_looks[0], b) for b in applied_looks[1:]]:
        group_figures.disagreement[a.name, b.name] = _mean_distance(forest, a, b, group_P, n)
    return group_figures


def _mean_distance(forest: Forest, a: Outlook, b: Outlook, group: torch.Tensor, n: int) -> Floats:
    is_trained_P = forest.path_trainable
    distance_P = (_in_rms_units(a, is_trained_P) - _in_rms_units(b, is_trained_P)).abs() * is_trained_P
    count = torch.bincount(group[is_trained_P], minlength=n)
    return (torch.bincount(group, distance_P, n) / count.clamp_min(1)).numpy()


def _in_rms_units(x: Outlook, is_trained_P: torch.Tensor) -> torch.Tensor:
    """Divide advantages by their root mean square over the step, so that methods of different scale compare."""
    assert x.credit is not None
    size = x.credit[is_trained_P].square().mean().sqrt() if bool(is_trained_P.any()) else torch.tensor(0.0)
    return x.credit / size if size > 0 else x.credit


def choose_groups(figures: GroupFigures, rollouts: int = MOST_ROLLOUTS, tokens: int = MOST_TOKENS) -> NDArray[np.int64]:
    """Choose the groups of a page, returned in the order of the file.

    All of them where they fit; else in turn those of the widest spread, those on which methods disagree most, and
    zero-signal and other ones evenly through the file, until the page is full.
    """
    n = len(figures.names)
    if figures.size.sum() <= rollouts and figures.tokens.sum() <= tokens:
        return np.arange(n)
    is_zero_signal = next(iter(figures.zero_signal.values()), figures.spread == 0)
    queues = [np.argsort(-np.nan_to_num(figures.spread), kind="stable")]
    queues += [np.argsort(-d, kind="stable") for d in figures.disagreement.values()]
    queues += [_order_evenly(np.flatnonzero(is_zero_signal)), _order_evenly(np.flatnonzero(~is_zero_signal))]
    selected: dict[int, None] = {}
    rollouts_left, tokens_left = rollouts, tokens
    heads = [iter(q.tolist()) for q in queues if len(q)]
    # one group of each queue in turn; a group that does not fit any more is passed over, since a smaller one may
    while heads:
        for head in list(heads):
            g = next((g for g in head if g not in selected), None)
            if g is None:
                heads.remove(head)
            elif figures.size[g] <= rollouts_left and figures.tokens[g] <= tokens_left:
                selected[g] = None
                rollouts_left, tokens_left = rollouts_left - int(figures.size[g]), tokens_left - int(figures.tokens[g])
    # a first group that is too large for any page is shown all the same: an empty page would help nobody
    return np.array(sorted(selected or {0: None}), dtype=np.int64)


def _order_evenly(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Order rows so that every prefix is spread evenly over them: by bit-reversed position."""
    n_bits = max(len(rows) - 1, 1).bit_length()
    order = [int(f"{i:0{n_bits}b}"[::-1], 2) for i in range(len(rows))]
    return rows[np.argsort(order, kind="stable")]
