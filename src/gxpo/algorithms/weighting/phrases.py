"""Phrases for token labels: a default list as a regular expression, and frequent phrases of a corpus."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

PLANNING = (  # English phrases of planning, branching off and going back; a list of ours, none is published
    "let me check",
    "let me think",
    "let me try",
    "let's try",
    "let's see",
    "let's consider",
    "we can use",
    "we need to",
    "we know that",
    "i need to",
    "first, i",
    "the next step is",
    "now i can",
    "another way",
    "a different approach",
    "alternatively",
    "on the other hand",
    "wait, no",
    "but wait",
    "go back to",
    "let me verify",
    "to check this",
    "this means that",
    "it follows that",
    "but the problem",
)


def as_pattern(phrases: Sequence[str]) -> str:
    """Regular expression that matches any of the phrases, ignoring case and the amount of white space.

    >>> re.findall(as_pattern(["let me try", "try"]), "Let  me try. Retry!")
    ['Let  me try']
    """
    # longest first: an alternation takes the first that matches
    longest = sorted(phrases, key=lambda p: (-len(p), p))
    return r"(?i)\b(?:" + "|".join(r"\s+".join(map(re.escape, p.split())) for p in longest) + r")\b"


def frequent_phrases(
    texts: Iterable[str], top: int, *, words: tuple[int, int] = (3, 5), min_count: int = 2
) -> list[str]:
    """The `top` phrases of so many words (from, to) by number of texts that contain them, at least `min_count`.

    A text counts once, however often it says a phrase; of equally frequent phrases the longer, then the first by the
    alphabet. A phrase lies within a sentence and has letters only, so numbers and formulas break it. To be given
    solutions that succeeded.

    >>> frequent_phrases(["So let me try 3.", "Now let me try it.", "Let me try, let me see."], 1)
    ['let me try']
    """
    count: Counter[str] = Counter()
    for text in texts:
        # a set: a text counts once for a phrase, however often it has it
        phrases = set()
        # anything but letters, apostrophes and spaces ends a stretch: phrases cross neither sentences nor formulas
        for sentence_part in re.split(r"[^a-z' \t]+", text.lower()):
            tokens = sentence_part.split()
            for n in range(words[0], words[1] + 1):
                phrases |= {" ".join(tokens[i : i + n]) for i in range(len(tokens) - n + 1)}
        count.update(phrases)
    frequent = [phrase for phrase, texts_with in count.items() if texts_with >= min_count]
    return sorted(frequent, key=lambda p: (-count[p], -len(p.split()), p))[:top]
