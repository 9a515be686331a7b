r"""What a text answers: one notion for votes, for clusters of answers and for numeric rewards."""

from __future__ import annotations

import re

from gxpo.errors import ConfigError

# \boxed{...} with one level of braces inside, <answer>...</answer>, or a number after "#"; the last one counts
ANSWER = r"\\boxed\s*\{((?:[^{}]|\{[^{}]*\})*)\}|<answer>(.*?)</answer>|#\s*(-?\d+(?:[.,/]\d+)*)"


def compiled(pattern: str, key: str) -> re.Pattern[str]:
    """`pattern` with dots that match line ends; ConfigError that names `key` where it is no regular expression."""
    try:
        return re.compile(pattern, re.DOTALL)
    except (re.error, TypeError) as error:
        raise ConfigError(f"{key}={pattern!r} is no regular expression: {error}") from None


def extract(text: str, pattern: re.Pattern[str]) -> str | None:
    r"""The last non-empty thing that a group of `pattern` (the whole match, if it has none) finds; None without one.

    >>> extract("7+8=15#8 ... #85", re.compile(ANSWER)), extract(r"so \boxed{\frac{1}{2}}.", re.compile(ANSWER))
    ('85', '\\frac{1}{2}')
    """
    found = None
    for match in pattern.finditer(text):
        said = next((g for g in match.groups() if g is not None), None) if match.re.groups else match[0]
        found = (said or "").strip() or found
    return found
