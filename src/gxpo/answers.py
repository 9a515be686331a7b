r"""Answer extraction: the answer in a completion, shared by majority voting, answer clustering and numeric rewards."""

from __future__ import annotations

import re

from gxpo.errors import ConfigError

# \boxed{...} with one level of braces inside, <answer>...</answer>, or a number after "#"; the last one counts
ANSWER = r"\\boxed\s*\{((?:[^{}]|\{[^{}]*\})*)\}|<answer>(.*?)</answer>|#\s*(-?\d+(?:[.,/]\d+)*)"


def compiled(pattern: str, key: str) -> re.Pattern[str]:
    """Compile `pattern` with dots that match line ends; ConfigError naming `key` if it is no regular expression."""
    try:
        return re.compile(pattern, re.DOTALL)
    except (re.error, TypeError) as error:
        raise ConfigError(f"{key}={pattern!r} is no regular expression: {error}") from None


def extract(text: str, pattern: re.Pattern[str]) -> str | None:
    r"""The last non-empty match of a group of `pattern` (the whole match, if it has no group); None without a match.

    >>> extract("7+8=15#8 ... #85", re.compile(ANSWER)), extract(r"so \boxed{\frac{1}{2}}.", re.compile(ANSWER))
    ('85', '\\frac{1}{2}')
    """
    found = None
    for match in pattern.finditer(text):
        said = next((g for g in match.groups() if g is not None), None) if match.re.groups else match[0]
        found = (said or "").strip() or found
    return found
