"""Scores of a step's trajectories, kept: none is judged twice, and none is lost where it is written down again."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gxpo.forest.forest import Forest


class Verdict(NamedTuple):
    """Success and named components of a trajectory; unknown ones are left out."""

    success: float | None
    components: Mapping[str, float]


class Score(NamedTuple):
    """A trajectory's score.

    content  of its actions when it was judged: an attempt that has gone on since is another
    before   what it brought: verdict and components of an environment
    after    what it got
    """

    content: int
    outcome: float
    before: Verdict
    after: Verdict


class StepScores:
    """The scores of one step, by trajectory id."""

    def __init__(self) -> None:
        self._met: dict[str, Score | None] = {}  # None: it brought its outcome, and was not judged

    def is_met(self, forest: Forest) -> Tensor:
        """[R] bool: an attempt of that id was scored before."""
        return torch.tensor([name in self._met for name in forest.id], dtype=torch.bool)

    def is_judged(self, forest: Forest) -> Tensor:
        """[R] bool: the trajectory has an outcome, or was scored before with the same actions."""
        done = forest.scored.clone()
        rows = [r for r in (~done).nonzero().squeeze(1).tolist() if forest.id[r] in self._met]
        for r, content in zip(rows, _contents(forest, rows) if rows else (), strict=True):
            score = self._met[forest.id[r]]
            done[r] = score is None or score.content == content
        return done

    def recalled(self, forest: Forest, *, written: bool = False) -> Forest:
        """The forest with the scores of trajectories that were judged before and have none here.

        written  the forest comes from the attempts as they were played. Otherwise somebody may have taken an outcome
                 away, so a score returns only where all that came with it is missing; `info["failure"]` keeps it away
        """
        if not self._met or bool(forest.scored.all()):
            return forest
        score_by_row: dict[int, Score] = {}
        undecided: list[str] = []
        blank = (~forest.scored).nonzero().squeeze(1).tolist()
        rows = [r for r in blank if self._met.get(forest.id[r]) is not None and "failure" not in forest.info[r]]
        verdicts = _verdicts(forest) if rows else []
        for r, content in zip(rows, _contents(forest, rows) if rows else (), strict=True):
            score = self._met[forest.id[r]]
            if score is None or score.content != content or verdicts[r] != score.before:
                continue
            if written or score.after != score.before:
                score_by_row[r] = score
            elif not math.isnan(score.outcome):
                undecided.append(forest.id[r])
        if undecided:
            warnings.warn(
                f"{len(undecided)} rollouts were scored before in this step and come without an outcome, the first "
                f"{undecided[0]!r}: they stay unscored; give back what session.score gave, or set info['failure']",
                stacklevel=4,
            )
        if not score_by_row:
            return forest
        places, scores = torch.tensor(list(score_by_row)), list(score_by_row.values())
        names = dict.fromkeys(name for score in scores for name in score.after.components)
        scored = forest.select(places).with_rewards(
            _column([score.outcome for score in scores]),
            components={n: _column([score.after.components.get(n) for score in scores]) for n in names},
            success=_column([score.after.success for score in scores]),
        )
        return with_scores(forest, places, scored)

    def note(self, before: Forest, after: Forest, judged: Tensor) -> None:
        """Remember all trajectories; `judged` [R] bool are those that have got their scores now."""
        for name in after.id:
            self._met.setdefault(name, None)
        if not bool(judged.any()):
            return
        rows, outcome = judged.nonzero().squeeze(1).tolist(), after.outcome.tolist()
        brought, got = _verdicts(before), _verdicts(after)
        for r, content in zip(rows, _contents(before, rows), strict=True):
            self._met[after.id[r]] = Score(content, outcome[r], brought[r], got[r])


def with_scores(forest: Forest, rows: Tensor, scored: Forest) -> Forest:
    """The forest with the scores of `scored` in these rows; a component that a row has not is nan there."""
    columns = {}
    for name in dict.fromkeys((*forest.component_names, *scored.component_names)):
        columns[name] = torch.full((forest.n_trajectories,), torch.nan, dtype=torch.float64)
        if name in forest.component_names:
            columns[name] = forest.components[:, forest.component_names.index(name)].clone()
        if name in scored.component_names:
            columns[name][rows] = scored.components[:, scored.component_names.index(name)]
    return forest.with_rewards(
        forest.outcome.index_copy(0, rows, scored.outcome),
        components=columns,
        success=forest.success.index_copy(0, rows, scored.success),
    )


def _contents(forest: Forest, rows: Sequence[int]) -> list[int]:
    """For each of these trajectories a hash of its actions and of the number of its turns."""
    tokens = forest.token[forest.path_token].numpy()
    entries, turns = forest._entry_begin.tolist(), forest._step_begin.tolist()
    return [hash((tokens[entries[r] : entries[r + 1]].tobytes(), turns[r + 1] - turns[r])) for r in rows]


def _verdicts(forest: Forest) -> list[Verdict]:
    """The verdict on each trajectory: all that is known of it beside its outcome."""
    rows = zip(forest.success.tolist(), forest.components.tolist(), strict=True)
    return [
        Verdict(
            None if math.isnan(success) else success,
            {n: x for n, x in zip(forest.component_names, values, strict=True) if not math.isnan(x)},
        )
        for success, values in rows
    ]


def _column(values: Sequence[float | None]) -> Tensor:
    return torch.tensor([math.nan if x is None else x for x in values], dtype=torch.float64)
