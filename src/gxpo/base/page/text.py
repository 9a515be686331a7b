"""`Html` and `text`: anything as HTML that shows it and does nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from markupsafe import Markup, escape

# What a reader would not see, or what would change how its neighbours are seen: C0 and C1 control characters but tab
# and newline, marks that turn the writing direction, zero-width characters, line and paragraph separators, half a
# surrogate pair. Each becomes a visible name.
UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")


class Html(Markup):
    """Text that is HTML already. What is added, joined or formatted into it is escaped by `text`.

    >>> Html("<b>{}</b>").format("<i>") + "&"
    Html('<b>&lt;i&gt;</b>&amp;')
    """

    @classmethod
    def escape(cls, value: Any, /) -> Html:
        return cls(value if isinstance(value, Markup) else escape(visible(str(value))))


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
    Html('&lt;b&gt; &amp; &#39;x&#39;')
    >>> text(Html("<b>"))
    Html('<b>')
    """
    return Html.escape(value)


def join(parts: Iterable[Any], between: str = "") -> Html:
    """One piece of HTML of several, each escaped unless it is HTML."""
    return text(between).join(parts)
