"""Panel of judges: several judged rewards combined into one, and held-out judges whose verdicts are never paid."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo.base.errors import ConfigError
from gxpo.base.usercode import described
from gxpo.environments.rewards.base import Failure, GroupReward
from gxpo.environments.rewards.functions import load, names_file

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import Task


# ---------------------------------------------------------------- combinations of scores
Scores = Sequence[Sequence[float]]  # [R, K] of K judges; nan: unread
Combination = Callable[[Scores, Sequence[int]], Sequence[float | Failure]]


def mean(x: Sequence[float]) -> float:
    """Mean of the scores.

    >>> round(mean([0.2, 0.9, 0.95]), 6)
    0.683333
    """
    return sum(x) / len(x)


def uniform_phantom(x: Sequence[float]) -> float:
    """Median of the n scores in [0, 1] and of n - 1 phantoms k / n.

    Strategy-proof: a judge that reports another score than its own can only move the result away from its own. That is
    not little influence: the one at .2 below, reporting 1, moves .666667 to .9.

    >>> round(uniform_phantom([0.2, 0.9, 0.95]), 6), uniform_phantom([1.0, 0.9, 0.95])
    (0.666667, 0.9)
    """
    return statistics.median([*x, *(k / len(x) for k in range(1, len(x)))])


def agreement(x: Sequence[float]) -> list[float]:
    """Agreement of each judge with the others, in [0, 1]: 1 - mean over the others of the distance of their scores; 1
    for a single judge. Of votes it is the share of the others that vote alike. A bias that all share agrees with
    itself.

    >>> agreement([1.0, 1.0, 0.0])
    [0.5, 0.5, 0.0]
    """
    if len(x) == 1:
        return [1.0]
    return [1.0 - sum(abs(a - b) for b in x) / (len(x) - 1) for a in x]


def weighted_by_agreement(x: Sequence[float]) -> float:
    """Mean of the scores, each weighted by its judge's `agreement` with the others; the mean where none agree.

    >>> weighted_by_agreement([1.0, 1.0, 0.0])
    1.0
    """
    weights = agreement(x)
    total = sum(weights)
    return mean(x) if total <= 1e-12 else sum(w * a for w, a in zip(weights, x, strict=True)) / total


def beats(a: Sequence[float], b: Sequence[float], margins: Sequence[float]) -> int:
    """Lexicographic comparison: 1 where a is better than b at the first factor that differs by more than its margin,
    -1 where b is, else 0.

    Factors are in the order of their importance; one that is nan on either side differs by nothing. Not transitive
    where margins are above 0.

    >>> rows, margins = [[0.9, 0.2, 5], [0.85, 0.6, 1], [0.2, 0.9, 9]], [0.390512, 0.351188, 4]
    >>> [beats(rows[i], rows[j], margins) for i, j in ((0, 1), (0, 2), (1, 2))]
    [-1, 1, 1]
    """
    for x, y, margin in zip(a, b, margins, strict=True):
        if x > y + margin:
            return 1
        if y > x + margin:
            return -1
    return 0


def lexicographic(scores: Scores, groups: Sequence[int], margin: float) -> list[float]:
    """Lexicographic scores: share of the others of its group that each attempt beats, a tie counting half; nan for one
    without scores.

    margin  of a factor, in its standard deviations (n - 1) over all attempts of the step
    """
    scored_rows = [r for r, row in enumerate(scores) if not all(map(math.isnan, row))]
    columns = [[x for x in column if not math.isnan(x)] for column in zip(*scores, strict=True)]
    margins = [margin * statistics.stdev(c) if len(c) > 1 else 0.0 for c in columns]
    out = [math.nan] * len(scores)
    for r in scored_rows:
        other_rows = [s for s in scored_rows if groups[s] == groups[r] and s != r]
        shares = [(1 + beats(scores[r], scores[s], margins)) / 2 for s in other_rows]
        out[r] = sum(shares) / len(shares) if shares else math.nan
    return out


ROW_COMBINATIONS: dict[str, Callable[[Sequence[float]], float]] = {  # of one attempt's scores
    "mean": mean,
    "median": statistics.median,
    "uniform_phantom": uniform_phantom,
    "min": min,
    "agreement": weighted_by_agreement,
}


def combination(name: str, margin: float) -> Combination:
    """Combination (scores [R, K], group of each row) -> [R] by name: of `ROW_COMBINATIONS`, "lexicographic" with its
    `margin`, or `file.py:function` of the list of an attempt's readable scores; one that raises costs that attempt
    its score.
    """
    # Lexicographic compares attempts of a group with each other, all others score each by itself.
    if name == "lexicographic":
        return lambda scores, groups: lexicographic(scores, groups, margin)
    if name not in ROW_COMBINATIONS and not names_file(name):
        raise ConfigError(
            f"scoring.options.judge.combine is {name!r}; it is one of "
            f"{', '.join((*ROW_COMBINATIONS, 'lexicographic'))}, or file.py:function"
        )
    function = ROW_COMBINATIONS[name] if name in ROW_COMBINATIONS else load(name)

    def combine_rows(scores: Scores, groups: Sequence[int]) -> list[float | Failure]:
        return [_combine_row(function, name, [x for x in row if not math.isnan(x)]) for row in scores]

    return combine_rows


def _combine_row(function: Callable[[Sequence[float]], float], name: str, scores: Sequence[float]) -> float | Failure:
    """Combined score of one attempt: nan without scores, a failure where the function raises or gives no number."""
    if not scores:
        return math.nan
    try:
        value = float(function(scores))
    except Exception as error:
        return ("raised", f"combine={name}: {described(error)}")
    return value if math.isfinite(value) else ("nonsense", f"combine={name} gave {value}")


# ---------------------------------------------------------------- the panel
def exploitation_rate(
    weight: Sequence[float], credited: Sequence[bool], rejected: Sequence[bool], before: Sequence[bool] | None = None
) -> float:
    """Exploitation rate: weighted share of what the training judge credits that all held-out judges reject; nan where
    nothing is credited.

    before  what it credited at the previous checkpoint: only what is newly credited counts (as in the paper)

    Source: Reward Hacking in Rubric-Based Reinforcement Learning, sections 2 to 4.

    >>> exploitation_rate([2, 1, 3], [True] * 3, [True, True, False])
    0.5
    """
    credited_before = [False] * len(weight) if before is None else before
    new_weight = [
        w if is_credited and not was else 0.0
        for w, is_credited, was in zip(weight, credited, credited_before, strict=True)
    ]
    total = sum(new_weight)
    return sum(w for w, wrong in zip(new_weight, rejected, strict=True) if wrong) / total if total else math.nan


def self_internalisation_gap(plain: Sequence[float], conditioned: Sequence[float]) -> float:
    """Self-internalisation gap: mean of l(o | prompt) - l(o | prompt, rubric) over texts o that the policy writes with
    the rubric in its prompt; at most 0 in expectation, 0 where it follows the rubric without seeing it.

    plain, conditioned  mean log-prob (nats) a token of each text under the two prompts

    Source: as `exploitation_rate`; training is to stop at its maximum.

    >>> round(self_internalisation_gap([-1.10], [-0.85]), 6)
    -0.25
    """
    return sum(a - b for a, b in zip(plain, conditioned, strict=True)) / len(plain)


@dataclass(eq=False)
class Panel:
    """{"judge": [R]}: combined scores of several judges. Recorded beside it, and paid only if given a weight by
    name: "judge_NAME", each judge's own score, "held_out_NAME" and "held_out", those of held-out judges and their mean,
    and "exploitation": of attempts that "judge" credits (`pass_mark` or more), 1 where all held-out judges that could
    be read give less, else 0; nan of the others. Its mean in the metrics is the `exploitation_rate` of the step.

    members   judged rewards by name; None of a single judge, whose score is "judge" itself
    combine   see `combination`; over the judges that could be read: one bad reply costs one verdict
    every     the held-out judges are asked in every n-th step

    An attempt is unscored where no judge could be read, and counted with the first of its failures; a held-out judge's
    failures are nan alone.
    """

    members: Mapping[str, GroupReward]
    combine: Combination | None
    held_out: Mapping[str, GroupReward] = field(default_factory=dict)
    pass_mark: float = 0.5
    every: int = 1
    _step: int = 0
    _failures: list[Failure] = field(default_factory=list, init=False, repr=False)

    name = "judge"

    @property
    def gives(self) -> tuple[str, ...]:
        """Names of the components: the combined score, then those that are recorded beside it."""
        member_names = tuple(f"judge_{x}" for x in self.members) if self.combine is not None else ()
        held_out_names = (
            (*(f"held_out_{x}" for x in self.held_out), "held_out", "exploitation") if self.held_out else ()
        )
        return (self.name, *member_names, *held_out_names)

    @property
    def reports(self) -> tuple[str, ...]:
        """Components that are recorded and not paid."""
        return self.gives[1:]

    def at(self, step: int) -> None:
        """Announce the step that is scored next, to members that follow it too."""
        self._step = step
        for member in (*self.members.values(), *self.held_out.values()):
            getattr(member, "at", lambda step: None)(step)

    def failures(self) -> list[Failure]:
        """Return and clear the failures since the last call, one per trajectory that has no score."""
        collected, self._failures = self._failures, []
        return collected

    def __call__(self, forest: Forest, texts: Sequence[str], tasks: Sequence[Task]) -> dict[str, Tensor]:
        scores, failures = _scores_of(self.members, forest, texts, tasks)
        groups = forest.ids("group", axis="R").tolist()
        rows = list(zip(*scores.values(), strict=True))
        values = [row[0] for row in rows] if self.combine is None else self.combine(rows, groups)
        judge = [math.nan if isinstance(x, tuple) else x for x in values]
        n_unscored = sum(map(math.isnan, judge))
        failures = [*(x for x in values if isinstance(x, tuple)), *failures]
        # One failure for each unscored attempt, as the counts are of attempts: several judges may fail on one.
        self._failures += (failures + [("nonsense", "no judge's answer can be read")] * n_unscored)[:n_unscored]
        columns: dict[str, list[float]] = {"judge": judge}
        # The members' scores are shown beside the combined one.
        if self.combine is not None:
            columns |= {f"judge_{name}": x for name, x in scores.items()}
        if self.held_out:
            columns |= self._held_out_columns(judge, forest, texts, tasks)
        return {name: torch.tensor(x, dtype=torch.float64) for name, x in columns.items()}

    def _held_out_columns(
        self, judge: Sequence[float], forest: Forest, texts: Sequence[str], tasks: Sequence[Task]
    ) -> dict[str, list[float]]:
        """Columns of the held-out judges: scores, mean, and what the paid judge credits against all of them."""
        nans = [math.nan] * len(texts)
        scores = dict.fromkeys(self.held_out, nans)
        # Held-out judges may cost as much as the paid ones, so they may be asked in every n-th step alone.
        if self._step % self.every == 0:
            scores, _ = _scores_of(self.held_out, forest, texts, tasks)
        scores_by_row = [[x for x in row if not math.isnan(x)] for row in zip(*scores.values(), strict=True)]
        exploitation = [
            float(max(x) < self.pass_mark) if x and scores_paid >= self.pass_mark else math.nan
            for x, scores_paid in zip(scores_by_row, judge, strict=True)
        ]
        means = [sum(x) / len(x) if x else math.nan for x in scores_by_row]
        return {f"held_out_{name}": x for name, x in scores.items()} | {"held_out": means, "exploitation": exploitation}


def _scores_of(
    judges: Mapping[str, Callable[..., Mapping[str, Tensor] | Tensor]],
    forest: Forest,
    texts: Sequence[str],
    tasks: Sequence[Task],
) -> tuple[dict[str, list[float]], list[Failure]]:
    """Scores [R] by judge, and their failures."""
    scores, failures = {}, list[Failure]()
    for name, judge in judges.items():
        result = judge(forest, texts, tasks)
        (column,) = result.values() if isinstance(result, Mapping) else (result,)
        scores[name] = column.tolist()
        failures += getattr(judge, "failures", list)()
    return scores, failures
