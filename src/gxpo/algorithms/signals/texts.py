"""Signals from what was said: place of the first match of a pattern, clusters of equal answers within a group."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo.base.answers import ANSWER, compiled, extract
from gxpo.parts.functions import checked_by
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest

Decode = Callable[[Sequence[int]], str]


@part("first_match", stage="signal", gives={"first_use": "R"})
@checked_by(lambda pattern: compiled(pattern, "signal.first_match.pattern") and None)
def first_match(forest: Forest, decode: Decode, *, pattern: str = r"<tool_call>|<code>|```python") -> Tensor:
    """The signal "first_use" [R]: `match_place` among all of a trajectory's action tokens, turn after turn.

    pattern  a regular expression; the default finds calls of tools and blocks of Python as models write them
    """
    forest.need_ids("the place of a first match")
    found = [match_place(tokens, re.compile(pattern), decode) for tokens in _actions(forest)]
    return torch.tensor(found, dtype=torch.float64)


def match_place(tokens: Sequence[int], pattern: re.Pattern[str], decode: Decode) -> float:
    """Index of the token that holds the first character of the first match; nan without a match.

    >>> match_place([7, 8, 9], re.compile("b"), lambda ids: "".join("abc"[i - 7] for i in ids))
    1.0
    """
    found = pattern.search(decode(tokens))
    if found is None:
        return float("nan")
    shown = bisect_right(range(len(tokens)), found.start(), key=lambda n: len(decode(tokens[: n + 1])))
    return float(min(shown, len(tokens) - 1))


@part("answer_clusters", stage="signal", gives={"answer_cluster": "R"})
@checked_by(lambda pattern: compiled(pattern, "signal.answer_clusters.pattern") and None)
def answer_clusters(forest: Forest, decode: Decode, *, pattern: str = ANSWER) -> Tensor:
    """The signal "answer_cluster" [R]: `clusters` of each trajectory's decoded action text."""
    if forest.text_only:
        forest.need_ids("a cluster of answers")
    return clusters([decode(tokens) for tokens in _actions(forest)], forest.ids("group", axis="R"), pattern)


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


def _actions(forest: Forest) -> list[list[int]]:
    """Action tokens of each trajectory, turn after turn."""
    lengths = torch.bincount(forest.path_trajectory, minlength=forest.n_trajectories).tolist()
    return [tokens.tolist() for tokens in forest.token[forest.path_token].split(lengths)]
