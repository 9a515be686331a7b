"""Phrases for token labels: a default list as a regular expression, and frequent phrases of a corpus."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

PLANNING = (  # how English says that it plans, branches off or goes back; ours, no published list
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
    longest = sorted(phrases, key=lambda p: (-len(p), p))
    return r"(?i)\b(?:" + "|".join(r"\s+".join(map(re.escape, p.split())) for p in longest) + r")\b"


def frequent_phrases(texts: Iterable[str], top: int, *, words: tuple[int, int] = (3, 5), least: int = 2) -> list[str]:
    """The `top` phrases of so many words (from, to) by number of texts that contain them, at least `least`.

    A text counts once, however often it says a phrase; of equally frequent phrases the longer, then the first by the
    alphabet. A phrase lies within a sentence and has letters only, so numbers and formulas break it. To be given
    solutions that succeeded.

    >>> frequent_phrases(["So let me try 3.", "Now let me try it.", "Let me try, let me see."], 1)
    ['let me try']
    """
    count: Counter[str] = Counter()
    for text in texts:
        found = set()
        for stretch in re.split(r"[^a-z' \t]+", text.lower()):
            said = stretch.split()
            for n in range(words[0], words[1] + 1):
                found |= {" ".join(said[i : i + n]) for i in range(len(said) - n + 1)}
        count.update(found)
    often = [phrase for phrase, texts_with in count.items() if texts_with >= least]
    return sorted(often, key=lambda p: (-count[p], -len(p.split()), p))[:top]
