"""Figures of reference answers: whether completions hold theirs, by score, against chance and against neighbours'."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property, lru_cache

from gxpo.base.answers import NESTED, TAGGED, braced

# A sign belongs to a number unless it stands behind a digit, a letter or a closing bracket: 8-3 holds 8 and 3.
_NUMBER = re.compile(r"(?<![\w.])(?:(?<![\w)\]}])[-\u2212])?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?![\w])(?!\.\d)")
_DIGITS = re.compile(r"\d[\d,.]*")  # what every number lies in
_BOXED = re.compile(rf"\\boxed\s*\{{({braced(NESTED)})\}}")
_SPACE = re.compile(r"\s+")
_PLAIN = re.compile(r"[-+]?\d+(?:\.\d+)?")
SHORT = 60  # characters of a text that is an answer as a whole


@lru_cache(maxsize=8192)
def bare(reference: str) -> str:
    """The answer alone of a reference with its working: behind the last "####", or in the last \\boxed{}."""
    if "####" in reference:
        reference = reference.rsplit("####", 1)[1]
    if boxed := _BOXED.findall(reference):
        reference = boxed[-1]
    return _SPACE.sub(" ", reference).strip().strip("$").rstrip(".").strip()


@lru_cache(maxsize=8192)
def _number(text: str) -> float | None:
    found = text.replace("\u2212", "-").replace(",", "").lstrip("$").rstrip("%").strip()
    return float(found) if _PLAIN.fullmatch(found) else None


def _numbers(text: str) -> Iterator[str]:
    """Matches of `_NUMBER`, looked for only where digits stand: it begins with looks behind, which are slow."""
    for digits in _DIGITS.finditer(text):
        start, end = digits.span()
        for m in _NUMBER.finditer(text, max(start - 1, 0), min(end + 2, len(text))):
            if m.start() < end:
                yield m[0]


class Holder:
    """What a text holds, asked for several references."""

    def __init__(self, text: str) -> None:
        self.text = " ".join(text.split())
        self.numbers = [x for x in map(_number, _numbers(self.text)) if x is not None]

    def holds(self, reference: str) -> bool:
        """Whether the reference stands in the text by itself: 12 is in "= 12." and in "12.0", not in 312 or 12.5.

        Texts are compared without case and with single spaces; a single letter with its case, so that the article "a"
        is no answer A.
        """
        wanted = bare(reference)
        if not wanted:
            return False
        if (value := _number(wanted)) is not None:
            return value in self.numbers
        flags = 0 if len(wanted) == 1 else re.IGNORECASE
        if wanted.lower() not in self._lower:
            return False  # a pattern without case is slow where there is nothing to find
        return re.search(rf"(?<!\w){re.escape(wanted)}(?!\w)", self.text, flags) is not None

    @cached_property
    def _lower(self) -> str:
        return self.text.lower()

    @property
    def last(self) -> str | None:
        """The last \\boxed{}, tag <answer> or number, or the whole of a short text: what a reader takes for the answer.
        None: there is none."""
        if boxed := _BOXED.findall(self.text):
            return _key(boxed[-1])
        if tagged := re.findall(TAGGED, self.text):
            return _key(tagged[-1])
        if self.numbers:
            return f"{self.numbers[-1]:.12g}"
        return (_key(self.text) or None) if len(self.text) <= SHORT else None


def _key(answer: str) -> str:
    """One spelling of an answer: 12, 12.0 and $12 are one."""
    wanted = bare(answer)
    value = _number(wanted)
    return wanted.lower() if value is None else f"{value:.12g}"
