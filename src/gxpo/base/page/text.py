"""`text`: anything as HTML that shows it and does nothing else."""

from __future__ import annotations

import html
import re
from typing import Any

# What a reader would not see, or what would change how its neighbours are seen: C0 and C1 control characters but tab
# and newline, marks that turn the writing direction, zero-width characters, line and paragraph separators, half a
# surrogate pair. Each becomes a visible name.
UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")


class Html(str):
    """Text that is HTML already; the parts of a page leave it as it is."""

    def __add__(self, other: str) -> Html:
        return Html(f"{self}{text(other)}")

    def __radd__(self, other: str) -> Html:
        return Html(f"{text(other)}{self}")


def visible(value: str) -> str:
    r"""The text with control characters, marks of direction and half surrogate pairs named.

    >>> visible("a\x00b\u202e\ud800")
    'a␀b<U+202E><U+D800>'
    """
    return UNSEEN.sub(lambda m: _visible_name(ord(m[0])), value)


def _visible_name(code: int) -> str:
    if code < 0x20:
        return chr(0x2400 + code)  # control pictures
    return "\u2421" if code == 0x7F else f"<U+{code:04X}>"


def text(value: Any) -> Html:
    """The value as HTML: escaped, and with characters that a reader would not see made visible.

    >>> text("<b> & 'x'")
    '&lt;b&gt; &amp; &#x27;x&#x27;'
    >>> text(Html("<b>"))
    '<b>'
    """
    if isinstance(value, Html):
        return value
    return Html(html.escape(visible(str(value))))


def join(parts: Any, between: str = "") -> Html:
    """One piece of HTML of several, each escaped unless it is HTML."""
    return Html(text(between).join(text(part) for part in parts))
