"""Phrases: the pattern that they make, and which stand in the most texts."""

from __future__ import annotations

import re
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from gxpo.algorithms.weighting.phrases import PLANNING, as_pattern, frequent_phrases


def test_a_pattern_matches_whole_words_in_any_case() -> None:
    pattern = as_pattern(["let me", "let me try", "wait, no"])
    text = "Let me\ntry it. WAIT,  no: outlet me, let mean; let me see"
    assert [m.group() for m in re.finditer(pattern, text)] == ["Let me\ntry", "WAIT,  no", "let me"]
    assert all(re.fullmatch(as_pattern(PLANNING), phrase) for phrase in PLANNING)


def test_worked_texts() -> None:
    """ "let me try" stands in three texts (twice in the last, which counts once), "me try it" in two, others in one."""
    texts = ["So let me try 3.", "Now let me try it.", "Let me try it, let me try."]
    assert frequent_phrases(texts, 9) == ["let me try", "let me try it", "me try it"]
    assert frequent_phrases(texts, 1) == ["let me try"] and frequent_phrases(texts, 9, min_count=4) == []
    assert frequent_phrases(texts, 9, words=(4, 4)) == ["let me try it"]


@given(st.lists(st.lists(st.sampled_from(["we", "can", "use", "it", "7", "."]), max_size=9), max_size=6))
def test_equals_a_loop_over_words(rows: list[list[str]]) -> None:
    count: Counter[str] = Counter()
    for words in rows:
        phrases_of_text = set()
        for n in (3, 4, 5):
            for i in range(len(words) - n + 1):
                piece = words[i : i + n]
                if all(w.isalpha() for w in piece):
                    phrases_of_text.add(" ".join(piece))
        count.update(phrases_of_text)
    expected = sorted((p for p in count if count[p] >= 2), key=lambda p: (-count[p], -p.count(" "), p))
    assert frequent_phrases([" ".join(words) for words in rows], 99) == expected
