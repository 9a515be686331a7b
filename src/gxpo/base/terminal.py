"""Output for people: the one place that writes to a terminal, and that escapes what others wrote.

File names, prompts, scripts, error messages of user code: any of them may hold a sequence that moves the cursor, sets
the clipboard, makes a link or turns the direction of writing. `escaped` shows such characters by their numbers. Styles
are the program's own, by `console`, which reads no markup in texts.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console

# Controls (C0 but for tab and line feed, delete, C1), line and paragraph separators, marks of the direction of writing,
# characters of no width that only hide or break words, halves of surrogate pairs, tags, and noncharacters. Joiners
# (U+200C, U+200D), which Persian and emoji need, are none of them.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff\U000e0000-\U000e007f]"
)


class Styled(str):
    """A text that `console` made: its control sequences are the program's own."""

    __slots__ = ()


def escaped(text: str) -> str:
    r"""The text with every character that a terminal would obey, or a reader not see, as \u and its number.

    A text in JSON stays JSON of the same value.

    >>> escaped("a\x1b[31m\tred\u202e\n")
    'a\\u001b[31m\tred\\u202e\n'
    """
    return text if isinstance(text, Styled) else _UNSAFE.sub(_number, text)


def _number(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def say(text: str, *, err: bool = False) -> None:
    """Print a text, escaped, and a line break; `err`: to standard error."""
    write(f"{text}\n" if not isinstance(text, Styled) else Styled(f"{text}\n"), sys.stderr if err else sys.stdout)


def write(text: str, stream: TextIO) -> None:
    """Write a text, escaped, to a stream for people."""
    text = escaped(text)
    try:
        stream.write(text)
    except UnicodeEncodeError:  # a terminal of another encoding than UTF-8
        encoding = stream.encoding or "ascii"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
    stream.flush()


def console(**options: Any) -> Console:
    """A console of rich that escapes every text, and takes markup, emoji codes and highlights of none.

    options  of `rich.console.Console`
    """
    from rich.console import Console
    from rich.segment import Segment
    from rich.text import Text

    class Escaping(Console):
        # segments are escaped where they are written, whatever made them: tables, errors, progress
        def render(self, renderable: Any, options: Any = None) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                yield segment if segment.control else Segment(escaped(segment.text), segment.style)

        def render_str(self, text: str, **how: Any) -> Text:
            return super().render_str(escaped(text), **how)  # before its width is measured

    return Escaping(**{"markup": False, "emoji": False, "highlight": False, **options})
