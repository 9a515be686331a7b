"""Valid thinking: share of a thought that follows the first statement of the right answer (LC-R1)."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import torch
from annotated_types import MinLen
from torch import Tensor

from gxpo.base.errors import GxpoError
from gxpo.base.usercode import object_at
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest

Decode = Callable[[Sequence[int]], str]
Answers = Callable[["Forest"], Sequence[str | None]]


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
             there is none, in the place of a search for the answer as a word; an extractor model is asked in it

    Source: LC-R1, arXiv 2506.14755, whose extractor is a trained model.
    """
    forest.need_ids("a share of the thought")
    forest.need_verdicts("valid_thinking", each=True)
    find, out = object_at(extract) if extract else first_statement, [0.0] * forest.n_trajectories
    known = answers(forest)
    for r in ((forest.success >= 1) & forest.scored).nonzero().squeeze(1).tolist():
        tokens = forest.token[forest.path_token[forest.path_of(r)]].tolist()
        thought, tag, _ = decode(tokens).partition(close)
        if not tag:
            continue
        if known[r] is None:
            raise GxpoError(f"valid_thinking: task {forest.task[r]!r} has no reference answer: give it one")
        begin = find(thought, str(known[r]))
        out[r] = compressed(_tokens(tokens, decode, begin), _tokens(tokens, decode, len(thought))) if begin else -1.0
    return torch.tensor(out, dtype=torch.float64)


def compressed(valid: int, whole: int) -> float:
    """1 - valid / whole, in tokens.

    >>> compressed(60, 150)
    0.6
    """
    return 1.0 - valid / max(whole, 1)


def first_statement(thought: str, answer: str) -> int:
    """Characters up to the end of the first place where the answer stands as a word of its own; 0 without one.

    >>> first_statement("7+8=15, 24 or 4? 4.", "4"), first_statement("24", "4")
    (15, 0)
    """
    found = re.search(rf"(?<![\w.]){re.escape(answer)}(?!\w|\.\d)", thought)
    return 0 if found is None else found.end()


def _tokens(tokens: Sequence[int], decode: Decode, characters: int) -> int:
    """Tokens that hold the first characters of the decoded text."""
    return bisect_left(range(len(tokens) + 1), characters, key=lambda n: len(decode(tokens[:n])))
