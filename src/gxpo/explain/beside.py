"""Rollouts of another run or checkpoint on the tasks of a page, for `gxpo explain --beside`."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gxpo.base.errors import RecordError
from gxpo.base.media import made_in
from gxpo.explain.group_figures import GroupFigures
from gxpo.explain.rollout_columns import picture_label, picture_urls
from gxpo.explain.rollout_source import Source, read, steps_of

MOST_TEXTS = 8  # rollouts of a task whose texts are shown
MAX_TEXT = 2_000  # characters of each
STEP = re.compile(r"(?P<path>.+)@(?P<step>\d{1,18})")


@dataclass(frozen=True)
class SecondRun:
    """A run, folder or file of rollouts to set beside a page's. `step`: of it, None: the step that the page shows."""

    path: Path
    step: int | None = None

    @classmethod
    def parse(cls, text: str) -> SecondRun:
        """Read PATH or PATH@STEP; a path that exists is taken as it is, with an @ in it or without."""
        match = STEP.fullmatch(text)
        if match is None or Path(text).exists():
            return cls(Path(text))
        return cls(Path(match["path"]), int(match["step"]))

    def read(self, step: int | None) -> Source:
        """Read its rollouts: of its own step, else of `step`, else of the nearest that it has."""
        steps = [s for s in steps_of(self.path) if s is not None]
        if self.step is not None or step is None or not steps:
            return read(self.path, self.step)
        return read(self.path, min(steps, key=lambda s: (abs(s - step), s)))


def beside_columns(source: Source, second: Source, figures: GroupFigures, groups: Sequence[int]) -> dict[str, Any]:
    """Collect the other's rollouts on the same tasks: for each group their number, mean reward and some texts.

    Rollouts are of the same task where the task's name is equal. A group without any has `count` 0 and a null mean.
    """
    # a task may have several groups in the other's step: all its rollouts count
    rows_by_task: dict[str, list[int]] = defaultdict(list)
    forest = second.forest
    for r, task in enumerate(forest.task):
        rows_by_task[task].append(r)
    group_task = dict(zip(source.forest.group, source.forest.task, strict=True))
    rows = [rows_by_task.get(group_task[figures.names[g]], []) for g in groups]

    reward_R = forest.outcome.numpy()
    chosen_rows = [_choose_evenly(reward_R, r) for r in rows]
    infos = [second.forest.info[i] for chosen in chosen_rows for i in chosen]
    return {
        "pictures": picture_urls(made_in(infos)),
        "title": second.title,
        "file": second.facts[0],
        "count": [len(r) for r in rows],
        "mean": [None if not len(r) or np.isnan(reward_R[r]).all() else float(np.nanmean(reward_R[r])) for r in rows],
        "rollouts": [[_rollout(second, i) for i in chosen] for chosen in chosen_rows],
    }


def check_common_tasks(sources: Sequence[Source], second_sources: Sequence[Source]) -> None:
    """Raise RecordError where no task is in both of a pair, for any of the pairs."""
    pairs = list(zip(sources, second_sources, strict=True))
    if pairs and not any(set(source.forest.task) & set(second.forest.task) for source, second in pairs):
        source, second = pairs[-1]
        raise RecordError(
            f"--beside: {second.facts[0]} has no task of {source.facts[0]} (it has {second.forest.task[0]!r}, the page "
            f"{source.forest.task[0]!r}); evaluations are of the same tasks: RUN/evaluations"
        )


def _choose_evenly(reward_R: np.ndarray, rows: list[int]) -> list[int]:
    """Choose rollouts evenly by reward, so that the best and the worst are among them."""
    ranked = sorted(rows, key=lambda r: (-np.nan_to_num(reward_R[r], nan=-np.inf), r))
    if len(ranked) <= MOST_TEXTS:
        return ranked
    return [ranked[round(i * (len(ranked) - 1) / (MOST_TEXTS - 1))] for i in range(MOST_TEXTS)]


def _rollout(source: Source, r: int) -> dict[str, Any]:
    forest, words = source.forest, source.words
    token = words.token[forest.path_token[forest.path_of(r)].numpy()]
    text = (" " if source.side else "").join(words.texts[t] if t >= 0 else "" for t in token.tolist())
    reward = float(forest.outcome[r])
    return {
        "reward": None if np.isnan(reward) else reward,
        "made": picture_label(forest.info[r]),
        "text": text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]} [and {len(text) - MAX_TEXT} characters]",
    }
