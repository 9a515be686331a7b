"""Signals from decoded text: first match of a pattern, clusters of equal answers, share of valid thinking."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import torch
from annotated_types import MinLen
from torch import Tensor

from gxpo.base.answers import ANSWER, compiled, extract
from gxpo.base.errors import GxpoError
from gxpo.base.usercode import object_at
from gxpo.forest.reshape import pieces_of
from gxpo.parts.functions import checked_by
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest

Decode = Callable[[Sequence[int]], str]
Answers = Callable[["Forest"], Sequence[str | None]]


@part("first_match", stage="signal", gives={"first_use": "R"})
@checked_by(lambda pattern: compiled(pattern, "signal.first_match.pattern") and None)
def first_match(forest: Forest, decode: Decode, *, pattern: str = r"<tool_call>|<code>|```python") -> Tensor:
    """The signal "first_use" [R]: `match_place` among all of a trajectory's action tokens, turn after turn.

    pattern  a regular expression; the default finds calls of tools and blocks of Python as models write them
    """
    forest.need_ids("the place of a first match")
    token_indices = [match_place(tokens, re.compile(pattern), decode) for tokens in _actions(forest)]
    return torch.tensor(token_indices, dtype=torch.float64)


def match_place(tokens: Sequence[int], pattern: re.Pattern[str], decode: Decode) -> float:
    """Index of the token that holds the first character of the first match; nan without a match.

    >>> match_place([7, 8, 9], re.compile("b"), lambda ids: "".join("abc"[i - 7] for i in ids))
    1.0
    """
    match = pattern.search(decode(tokens))
    if match is None:
        return float("nan")
    # Tokens may hold several characters, or part of one: bisection over decoded prefixes finds the token.
    token_index = bisect_right(range(len(tokens)), match.start(), key=lambda n: len(decode(tokens[: n + 1])))
    return float(min(token_index, len(tokens) - 1))


@part("answer_clusters", stage="signal", gives={"answer_cluster": "R"})
@checked_by(lambda pattern: compiled(pattern, "signal.answer_clusters.pattern") and None)
def answer_clusters(forest: Forest, decode: Decode, *, pattern: str = ANSWER) -> Tensor:
    """The signal "answer_cluster" [R]: `clusters` of each trajectory's decoded action text."""
    if forest.text_only:
        forest.need_ids("a cluster of answers")
    return clusters([decode(tokens) for tokens in _actions(forest)], forest.ids("group", axis="R"), pattern)


def clusters(texts: Sequence[str], group: Tensor, pattern: str = ANSWER) -> Tensor:
    """Dense ids of (group, answer), [R] int64: equal for equal answers of one group; -1 in no group.

    texts    text of each attempt;   group  [R] int64 dense ids, -1 = in no group
    pattern  its groups catch the answer, the last catch of a text counts; a text without one is its own answer, whole

    Answers are compared as strings: 1/2 and 0.5 are two.

    >>> clusters(["so #85", "no: #85", "#84", "hm"], torch.zeros(4).long()).tolist()
    [0, 0, 1, 2]
    """
    read = compiled(pattern, "signal.answer_clusters.pattern")
    id_by_answer: dict[tuple[int, bool, str], int] = {}
    ids = []
    for text, g in zip(texts, group.tolist(), strict=True):
        answer = extract(text, read)
        # Text without an answer is its own answer, but never equal to an extracted one.
        key = (g, answer is not None, text.strip() if answer is None else answer)
        ids.append(id_by_answer.setdefault(key, len(id_by_answer)) if g >= 0 else -1)
    return torch.tensor(ids, dtype=torch.int64)


@part("item_hits", stage="signal", gives={"item_hit": "P"})
def item_hits(forest: Forest, decode: Decode, answers: Answers) -> Tensor:
    """The signal "item_hit" [P]: 1 for tokens of an item that is among the reference's, else 0.

    An item is a segment of the action (`segment: delimiter`, `segment.text: "\\n"`), the reference's items are the
    lines of the task's answer. They are compared without case and double spaces; of equal items the first counts.
    """
    forest.need_ids("hits of a list's items")
    piece_P = pieces_of(forest).piece
    texts = [decode(tokens.tolist()) for tokens in forest.token[forest.path_token].split(piece_P.bincount().tolist())]
    owners, references = pieces_of(forest).trajectory.tolist(), answers(forest)
    reference_items = [{*map(_normal, str(x or "").splitlines())} - {""} for x in references]
    hit = []
    for text, r in zip(texts, owners, strict=True):
        hit.append(float(_normal(text) in reference_items[r]))
        reference_items[r].discard(_normal(text))
    return torch.tensor(hit, dtype=torch.float64)[piece_P]


def _normal(item: str) -> str:
    return " ".join(item.split()).casefold()


def _actions(forest: Forest) -> list[list[int]]:
    """Action tokens of each trajectory, turn after turn."""
    lengths = torch.bincount(forest.path_trajectory, minlength=forest.n_trajectories).tolist()
    return [tokens.tolist() for tokens in forest.token[forest.path_token].split(lengths)]


@part("valid_thinking", stage="signal", gives={"valid_thinking": "R"})
def valid_thinking(
    forest: Forest,
    decode: Decode,
    answers: Answers,
    *,
    close: Annotated[str, MinLen(1)] = "</think>",
    extract: str = "",
) -> Tensor:
    """The signal "valid_thinking" [R]: 1 - l / L of a right answer, L tokens of its thought, l of those up to the end
    of the first statement of the answer; -1 where the thought does not state it; 0 of a wrong answer, and without a
    thought.

    close    text that ends the thought, which begins the attempt
    extract  `file.py:function` of (thought, answer) that gives the number of characters up to the statement, 0 where
             there is none, in the place of a search for the answer as a word; it may ask an extractor model

    Source: LC-R1, arXiv 2506.14755, whose extractor is a trained model.
    """
    forest.need_ids("a share of the thought")
    forest.need_verdicts("valid_thinking", each=True)
    find, out = object_at(extract) if extract else first_statement, [0.0] * forest.n_trajectories
    reference_answers = answers(forest)
    # Wrong answers keep 0: their thought states nothing worth compressing to.
    for r in ((forest.success >= 1) & forest.scored).nonzero().squeeze(1).tolist():
        tokens = forest.token[forest.path_token[forest.path_of(r)]].tolist()
        thought, tag, _ = decode(tokens).partition(close)
        # A thought that was not closed has no end to measure the rest by.
        if not tag:
            continue
        if reference_answers[r] is None:
            raise GxpoError(f"valid_thinking: task {forest.task[r]!r} has no reference answer: give it one")
        begin = find(thought, str(reference_answers[r]))
        out[r] = share_after(_tokens(tokens, decode, begin), _tokens(tokens, decode, len(thought))) if begin else -1.0
    return torch.tensor(out, dtype=torch.float64)


def share_after(valid: int, total: int) -> float:
    """Share of tokens after the statement, 1 - valid / total.

    >>> share_after(60, 150)
    0.6
    """
    return 1.0 - valid / max(total, 1)


def first_statement(thought: str, answer: str) -> int:
    """Number of characters up to the end of the answer's first occurrence as a whole word; 0 without one.

    >>> first_statement("7+8=15, 24 or 4? 4.", "4"), first_statement("24", "4")
    (15, 0)
    """
    match = re.search(rf"(?<![\w.]){re.escape(answer)}(?!\w|\.\d)", thought)
    return 0 if match is None else match.end()


def _tokens(tokens: Sequence[int], decode: Decode, characters: int) -> int:
    """Number of tokens that hold the first `characters` of the decoded text."""
    return bisect_left(range(len(tokens) + 1), characters, key=lambda n: len(decode(tokens[:n])))
