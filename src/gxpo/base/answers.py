r"""Answer extraction: the answer in a completion, shared by majority voting, answer clustering and numeric rewards."""

from __future__ import annotations

import re

from gxpo.base.errors import ConfigError

NESTED = 4  # braces within each other inside a box
TAGGED = r"<answer>((?:(?!<answer>).)*?)</answer>"  # the opening nearest to its end, so that reading is linear


def braced(depth: int) -> str:
    """Regular expression for a text whose braces are in pairs, so many within each other."""
    return r"[^{}]*" if depth == 0 else rf"(?:[^{{}}]|\{{{braced(depth - 1)}\}})*"


# \boxed{...}, <answer>...</answer>, or a number after "#"; the last one counts
ANSWER = rf"\\boxed\s*\{{({braced(NESTED)})\}}|{TAGGED}|#\s*(-?\d+(?:[.,/]\d+)*)"


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
    answer = None
    for match in pattern.finditer(text):
        group = next((g for g in match.groups() if g is not None), None) if match.re.groups else match[0]
        answer = (group or "").strip() or answer
    return answer
