"""Valid thinking: how much of a thought follows the first statement of the answer, and where the bonus is paid."""

from __future__ import annotations

import pytest
import torch

import gxpo
from gxpo.algorithms.segments.base import SegmentTools
from gxpo.algorithms.segments.segmenters import Spans
from gxpo.algorithms.signals.texts import first_statement, share_after, valid_thinking
from gxpo.base.errors import GxpoError
from gxpo.forest.forest import Forest

TAG = 999  # one token that is "</think>"


def decode(ids):
    return "".join("</think>" if i == TAG else chr(i) for i in ids)


def tokens(text):
    head, tag, tail = text.partition("</think>")
    return [ord(c) for c in head] + ([TAG] if tag else []) + [ord(c) for c in tail]


def attempts(*rows):
    """Rows (text, right)."""
    texts, right = zip(*rows, strict=True)
    forest = Forest.from_completions([[1]], [[tokens(t) for t in texts]], [[float(r) for r in right]])
    return forest.replace(success=forest.outcome)


def test_the_number_of_lc_r1():
    assert share_after(60, 150) == pytest.approx(0.6)
    thought = "so 42" + "." * 5  # 5 of 10 tokens
    forest = attempts(
        (f"{thought}</think>42", True), ("4242</think>42", True), (f"{thought}</think>42", False), ("42", True)
    )
    found = valid_thinking(forest, decode, lambda f: ["42"] * 4)
    # half; the thought does not state it as a word; wrong; no end of a thought
    assert found.tolist() == [0.5, -1, 0, 0]
    with pytest.raises(GxpoError, match="no reference answer"):
        valid_thinking(forest, decode, lambda f: [None] * 4)


def test_an_answer_is_found_as_a_word():
    assert first_statement("4.5 or 4", "4") == 8 and first_statement("x=4", "4") == 3
    assert first_statement("40, 0.4, 4.0", "4") == 0


def own(thought, answer):
    return len(thought) if answer in thought else 0


def test_an_extractor_of_your_own():
    forest = attempts(("ab4242</think>", True))
    found = valid_thinking(forest, decode, lambda f: ["42"], extract=f"{__file__}:own")
    assert found.tolist() == [0.0]


def test_the_bonus_stands_at_the_end_of_the_thought():
    # lengths 5, 9: R - |o| / 9: .444444 0; their mean .222222; at the tag + (1 - 2/3), and -1
    forest = attempts(("42.</think>4", True), ("4242424</think>4", True))
    forest = Spans(patterns=("</think>",))(forest, SegmentTools(decode))
    m = gxpo.method("lc_r1")
    forest = m.shaped(forest)
    signal = valid_thinking(forest, decode, lambda f: ["42"] * 2)
    credit = m.advantages(forest, {"valid_thinking": signal})
    tags = forest.token[forest.path_token] == TAG
    assert credit[tags].tolist() == pytest.approx([2 / 9 + 1 / 3, -2 / 9 - 1])
    assert credit[~tags].tolist() == pytest.approx([2 / 9] * 4 + [-2 / 9] * 8)
    bare = Spans(patterns=("x",))(m.shaped(attempts(("42", True))), SegmentTools(decode))
    assert m.advantages(bare, {"valid_thinking": torch.ones(1)}).tolist() == [0.0, 0.0]
