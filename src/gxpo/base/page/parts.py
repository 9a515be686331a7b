"""Parts of a page: heading, verdict, key figures, charts, tables; `parts.html` has their markup."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from jinja2 import Environment, StrictUndefined

from gxpo.base.page.text import Html, join, text

Kind = Literal["critical", "warning", "note", "healthy"]

# `finalize` escapes before Jinja does, so that characters which a reader would not see become visible as well
_ENVIRONMENT = Environment(autoescape=True, finalize=text, undefined=StrictUndefined, keep_trailing_newline=True)
MACROS: Any = _ENVIRONMENT.from_string((Path(__file__).parent / "parts.html").read_text(encoding="utf-8")).module


def masthead(title: str, facts: Iterable[str] = ()) -> Html:
    """The page's heading, and under it one line of facts."""
    return Html(MACROS.masthead(title, list(facts)))


def verdict(kind: Kind, headline: str, lines: Iterable[str] = (), *, label: str | None = None) -> Html:
    """The headline box of a page, with its kind above it, or `label` instead."""
    return Html(MACROS.verdict(kind, (label or kind).capitalize(), headline, list(lines)))


def key_figures(figures: Iterable[tuple[str, Any] | tuple[str, Any, str]]) -> Html:
    """A row of (label, value) or (label, value, note)."""
    return Html(MACROS.key_figures([(label, value, *note, "")[:3] for label, value, *note in figures]))


def section(title: str, *body: str, id: str = "") -> Html:
    """A part of the page under a heading of its own."""
    return Html(MACROS.section(title, join(body), id))


def finding(title: str, *body: str) -> Html:
    """A part of a section, under a smaller heading, set off by a line."""
    return Html(MACROS.finding(title, join(body)))


def paragraph(*content: str, soft: bool = False) -> Html:
    return Html(MACROS.paragraph(join(content), soft))


def bullets(lines: Iterable[str]) -> Html:
    """A list with a bullet before each line; nothing without lines."""
    return Html(MACROS.bullets(list(lines)))


def preformatted(value: str, *, boxed: bool = False) -> Html:
    """Text of a model or a file, with its line ends."""
    return Html(MACROS.preformatted(value, boxed))


def folded(title: str, *body: str, open: bool = False) -> Html:
    """Body that is shown on request."""
    return Html(MACROS.folded(title, join(body), open))


def charts(charts_and_captions: Iterable[tuple[str, str]]) -> Html:
    """A grid of (`svg_chart`, caption)."""
    return Html(MACROS.charts(list(charts_and_captions)))


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    numbers: Collection[str] = (),
    caption: str = "",
    wide: bool = False,
) -> Html:
    """A table that scrolls inside itself where it is wider than the page.

    columns  headings; with all of them empty, the first cell of each row is its heading, for readers that hear it
    numbers  the columns of figures, set to the right
    wide     as wide as the page

    `ValueError` if a row has not as many cells as there are columns.
    """
    cells = [list(zip(columns, row, strict=True)) for row in rows]
    return Html(MACROS.table(columns, cells, numbers, caption, wide))
