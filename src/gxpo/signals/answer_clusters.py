"""Clusters of equal answers within a group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo.answers import ANSWER, compiled, extract
from gxpo.registry import part
from gxpo.signals.base import SignalPart, SignalTools

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


def clusters(texts: Sequence[str], group: Tensor, pattern: str = ANSWER) -> Tensor:
    """Dense ids of (group, answer), [R] int64: equal for equal answers of one group; -1 in no group.

    texts    what each attempt says;   group  [R] int64 dense ids, -1 = in no group
    pattern  its groups catch the answer, the last catch of a text counts; a text without one is its own answer, whole

    Answers are compared as strings: 1/2 and 0.5 are two.

    >>> clusters(["so #85", "no: #85", "#84", "hm"], torch.zeros(4).long()).tolist()
    [0, 0, 1, 2]
    """
    read = compiled(pattern, "signal.answer_clusters.pattern")
    seen: dict[tuple[int, bool, str], int] = {}
    ids = []
    for text, g in zip(texts, group.tolist(), strict=True):
        found = extract(text, read)
        said = (g, found is not None, text.strip() if found is None else found)
        ids.append(seen.setdefault(said, len(seen)) if g >= 0 else -1)
    return torch.tensor(ids, dtype=torch.int64)


@part("answer_clusters", stage="signal")
@dataclass(frozen=True)
class AnswerClusters(SignalPart):
    """The signal "answer_cluster" [R]: `clusters` of each trajectory's decoded action text."""

    pattern: str = ANSWER

    provides = ("answer_cluster",)
    axes = {"answer_cluster": "R"}  # noqa: RUF012  never changed

    def __post_init__(self) -> None:
        compiled(self.pattern, "signal.answer_clusters.pattern")

    def compute(self, forest: Forest, signals: Signals, tools: SignalTools) -> dict[str, Tensor]:
        if forest.text_only:
            forest.need_ids("a cluster of answers")
        lengths = torch.bincount(forest.path_trajectory, minlength=forest.n_trajectories).tolist()
        said = [tools.decode(tokens.tolist()) for tokens in forest.token[forest.path_token].split(lengths)]
        return {"answer_cluster": clusters(said, forest.ids("group", axis="R"), self.pattern)}
