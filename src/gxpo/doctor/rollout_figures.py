"""Figures of single rollouts: groups and their signal, equal texts with different scores, credit against reward.

Those of variance are in `rollout_variance`, of reference answers in `rollout_references`, of texts in `rollout_texts`;
all can be imported from here. They are nan, or empty, where `Rollouts` lacks what they need. Groups are those of
`Rollouts.group`; rows with group -1 are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gxpo.doctor.rollout_references import (
    ByScore,
    Majority,
    bare,
    final_match,
    majority,
    neighbours,
    reference_match,
    references_by_score,
)
from gxpo.doctor.rollout_texts import (
    Overlap,
    Repeats,
    Shape,
    distinct_share,
    goes_on,
    markup,
    overlap,
    repeated_prompts,
    shape,
    unfinished,
)
from gxpo.doctor.rollout_variance import (
    EQUAL,
    Correlation,
    Ints,
    icc,
    permutation_p,
    variance_shares,
    within_correlation,
)
from gxpo.doctor.runlog import Floats, Rollouts

__all__ = [
    "EQUAL",
    "ByScore",
    "Contradictions",
    "Correlation",
    "Credit",
    "Groups",
    "Majority",
    "Overlap",
    "Repeats",
    "Shape",
    "Signal",
    "bare",
    "contradictions",
    "credit",
    "distinct_share",
    "final_match",
    "goes_on",
    "group_table",
    "icc",
    "majority",
    "markup",
    "neighbours",
    "overlap",
    "permutation_p",
    "reference_match",
    "references_by_score",
    "repeated_prompts",
    "shape",
    "signal",
    "unfinished",
    "variance_shares",
    "within_correlation",
]
RESIDUE = 1e-8  # advantages below are 0


@dataclass(frozen=True)
class Groups:
    """A row each group; scores are those of its scored rollouts.

    step         [g] step
    held_out     [g] whether it is of an evaluation
    first        [g] row of its first rollout in `Rollouts`
    size         [g] rollouts
    scored       [g] rollouts with a score
    mean, min, max   [g] of the scores; nan without a score
    std          [g] sqrt(sum (x - mean)^2 / (n - 1)); 0 with one score, nan with none
    completions  [g] distinct completions
    prompts      [g] distinct prompts
    """

    step: Ints
    held_out: NDArray[np.bool_]
    first: Ints
    size: Ints
    scored: Ints
    mean: Floats
    min: Floats
    max: Floats
    std: Floats
    completions: Ints
    prompts: Ints

    def __len__(self) -> int:
        return len(self.size)

    @property
    def silent(self) -> NDArray[np.bool_]:
        """Whether all scores of the group are equal (at least two)."""
        return (self.scored >= 2) & (self.max - self.min <= EQUAL)


def group_table(r: Rollouts) -> Groups:
    """Size, scores and distinct texts of every group, in the order of the rows."""
    rows = np.flatnonzero(r.group >= 0)
    ids, first, of_row = np.unique(r.group[rows], return_index=True, return_inverse=True)
    n, score = len(ids), r.score[rows]
    known = np.isfinite(score)
    scored = np.bincount(of_row, known, minlength=n).astype(np.int64)
    low, high = np.full(n, np.inf), np.full(n, -np.inf)
    np.minimum.at(low, of_row[known], score[known])
    np.maximum.at(high, of_row[known], score[known])
    total = np.bincount(of_row, np.where(known, score, 0.0), minlength=n)
    none = scored == 0
    mean = np.where(none, np.nan, total / np.maximum(scored, 1))
    deviation = np.where(known, score - mean[of_row], 0.0) ** 2
    std = np.sqrt(np.bincount(of_row, deviation, minlength=n) / np.maximum(scored - 1, 1))
    return Groups(
        step=r.step[rows][first],
        held_out=r.held_out[rows][first],
        first=rows[first],
        size=np.bincount(of_row, minlength=n).astype(np.int64),
        scored=scored,
        mean=mean,
        min=np.where(none, np.nan, low),
        max=np.where(none, np.nan, high),
        std=np.where(none, np.nan, std),
        completions=_distinct(of_row, [r.completion[i] for i in rows], n),
        prompts=_distinct(of_row, [r.prompt[i] for i in rows], n),
    )


def _distinct(of_row: Ints, texts: list[str], n: int) -> Ints:
    pairs = set(zip(of_row.tolist(), texts, strict=True))
    return np.bincount([g for g, _ in pairs], minlength=n).astype(np.int64)


@dataclass(frozen=True)
class Signal:
    """Shares of a step's training groups, of those with two or more scores; a row each step.

    zero   all scores equal
    right  of these, groups whose rollouts are all verified as successes; without verdicts, at the run's largest score
    wrong  of these, groups without a success; without verdicts, at the run's smallest score
    Where the run has one score alone and no verdicts, its groups are right if that is above 0, else wrong.
    """

    step: Ints
    groups: Ints
    zero: Floats
    right: Floats
    wrong: Floats


def signal(r: Rollouts) -> Signal:
    """Shares of groups without a learning signal, all right and all wrong, by training step."""
    g = group_table(r)
    used = (g.scored >= 2) & ~g.held_out
    if not used.any():
        none = np.empty(0)
        return Signal(none.astype(np.int64), none.astype(np.int64), none, none, none)
    top, bottom = g.max[used].max(), g.min[used].min()
    one = top - bottom <= EQUAL
    rows = np.flatnonzero(r.group >= 0)
    at = np.unique(r.group[rows], return_inverse=True)[1]
    verdict = np.bincount(at, r.success[rows]) / g.size  # nan where one is unknown
    unknown = np.isnan(verdict)
    right = g.silent & np.where(unknown, (g.max >= top - EQUAL) & (not one or top > 0), verdict == 1)
    wrong = g.silent & np.where(unknown, (g.min <= bottom + EQUAL) & (not one or top <= 0), verdict == 0)
    steps, at = np.unique(g.step[used], return_inverse=True)
    n = np.bincount(at)
    zero, right, wrong = (np.bincount(at, x[used]) / n for x in (g.silent, right, wrong))
    return Signal(steps, n.astype(np.int64), zero, right, wrong)


@dataclass(frozen=True)
class Contradictions:
    """pairs: rows (lowest score, highest score) of one group with one text; repeated: texts that a group has twice."""

    pairs: list[tuple[int, int]]
    repeated: int


def contradictions(r: Rollouts) -> Contradictions:
    """Equal completions of one group and prompt that were scored differently: a proof that the reward is noisy, was
    joined to the wrong rows, or depends on more than the text. At most one pair a text and group."""
    seen: dict[tuple[int, str, str], list[int]] = {}
    for i in np.flatnonzero((r.group >= 0) & np.isfinite(r.score)).tolist():
        seen.setdefault((int(r.group[i]), r.prompt[i], r.completion[i]), []).append(i)
    several = [rows for rows in seen.values() if len(rows) > 1]
    ends = [(min(rows, key=lambda i: r.score[i]), max(rows, key=lambda i: r.score[i])) for rows in several]
    return Contradictions([(a, b) for a, b in ends if r.score[b] - r.score[a] > EQUAL], len(several))


@dataclass(frozen=True)
class Credit:
    """Advantages of the training rows against their scores.

    correlation  of advantage and score, within groups
    groups       with two or more rows that have both
    off_centre   share of groups whose mean advantage is further from 0 than 1% of their largest
    positive     share of groups, of those with any advantage, that have none below 0
    residues     rows of groups (equal scores, advantages not 0), as the row with the largest advantage each
    largest      largest |advantage| of such a group; 0 without one
    """

    correlation: Correlation
    groups: int
    off_centre: float
    positive: float
    residues: list[int]
    largest: float


def credit(r: Rollouts) -> Credit:
    """Whether advantages are what a baseline within groups makes of the scores."""
    used = (r.group >= 0) & ~r.held_out & np.isfinite(r.advantage) & np.isfinite(r.score)
    rows = np.flatnonzero(used)
    both = within_correlation(np.where(used, r.advantage, np.nan), r.score, r.group)
    if not len(rows):
        return Credit(both, 0, float("nan"), float("nan"), [], 0.0)
    _, at = np.unique(r.group[rows], return_inverse=True)
    a, s, n = r.advantage[rows], r.score[rows], np.bincount(at)
    size = np.zeros(len(n))
    np.maximum.at(size, at, np.abs(a))
    low, high, least = np.full(len(n), np.inf), np.full(len(n), -np.inf), np.full(len(n), np.inf)
    np.minimum.at(low, at, s)
    np.maximum.at(high, at, s)
    np.minimum.at(least, at, a)
    several = n >= 2
    live = several & (size > RESIDUE)
    equal = several & (high - low <= EQUAL)
    spread = live & ~equal
    mean = np.bincount(at, a) / n
    residues = [int(rows[at == g][np.abs(a[at == g]).argmax()]) for g in np.flatnonzero(equal & live)]
    return Credit(
        both,
        int(several.sum()),
        float(np.mean(np.abs(mean[spread]) > 0.01 * size[spread])) if spread.any() else float("nan"),
        float(np.mean(least[spread] >= -RESIDUE)) if spread.any() else float("nan"),
        residues,
        float(size[equal & live].max(initial=0.0)),
    )
