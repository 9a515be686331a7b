"""Parts of a page: heading, verdict, key figures, charts, tables. Each escapes what it is given and gives `Html`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Literal

from gxpo.base.page.text import Html, join, text

Kind = Literal["critical", "warning", "note", "healthy"]


def masthead(title: str, facts: Iterable[str] = ()) -> Html:
    """The page's heading, and under it one line of facts."""
    spans = join(Html(f"<span>{text(fact)}</span>") for fact in facts)
    return Html(f"<header><h1>{text(title)}</h1>{f'<p class=facts>{spans}</p>' if spans else ''}</header>\n")


def verdict(kind: Kind, headline: str, lines: Iterable[str] = (), *, label: str | None = None) -> Html:
    """The headline box of a page, with its kind above it, or `label` instead."""
    items = join(Html(f"<li>{text(line)}</li>") for line in lines)
    return Html(
        f'<div class="verdict {text(kind)}"><p class="kind">{text((label or kind).capitalize())}</p>'
        f'<p class="said">{text(headline)}</p>{f"<ul>{items}</ul>" if items else ""}</div>\n'
    )


def key_figures(figures: Iterable[tuple[str, Any] | tuple[str, Any, str]]) -> Html:
    """A row of (what, value) or (what, value, note)."""
    cells = []
    for what, value, *note in figures:
        under = f'<span class="note">{text(note[0])}</span>' if note and note[0] else ""
        cells.append(Html(f"<div><dt>{text(what)}</dt><dd>{text(value)}{under}</dd></div>"))
    return Html(f'<dl class="figures">{join(cells)}</dl>\n')


def section(title: str, *body: str, id: str = "") -> Html:
    """A part of the page under a heading of its own."""
    name = f' id="{text(id)}"' if id else ""
    return Html(f"<section{name}><h2>{text(title)}</h2>\n{join(body)}</section>\n")


def paragraph(*content: str, soft: bool = False) -> Html:
    return Html(f"<p{' class=soft' if soft else ''}>{join(content)}</p>\n")


def preformatted(value: str, *, boxed: bool = False) -> Html:
    """Text of a model or a file, with its line ends."""
    return Html(f"<pre{' class=boxed' if boxed else ''}>{text(value)}</pre>")


def folded(title: str, *body: str, open: bool = False) -> Html:
    """Body that is shown on request."""
    return Html(f"<details{' open' if open else ''}><summary>{text(title)}</summary>{join(body)}</details>\n")


def charts(charts_and_captions: Iterable[tuple[str, str]]) -> Html:
    """A grid of (`svg_chart`, caption)."""
    figures = [
        Html(f"<figure>{svg}{f'<figcaption>{text(caption)}</figcaption>' if caption else ''}</figure>")
        for svg, caption in charts_and_captions
    ]
    return Html(f'<div class="charts">{join(figures)}</div>\n')


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    numbers: Collection[str] = (),
    caption: str = "",
    wide: bool = False,
) -> Html:
    """A table that scrolls inside itself where it is wider than the page.

    columns  headings; with all of them empty, the first cell of each row is its heading
    numbers  the columns of figures, set to the right
    wide     as wide as the page
    """
    # without headings the first cell of a row is its heading, for readers that hear the table
    marks = [' class="n"' if column in numbers else "" for column in columns]
    has_header = any(columns)
    top = "".join(f"<th scope=col{mark}>{text(c)}</th>" for c, mark in zip(columns, marks, strict=True))
    lines = []
    for row in rows:
        cells = [f"<td{mark}>{text(cell)}</td>" for cell, mark in zip(row, marks, strict=True)]
        if not has_header:
            cells[0] = f"<th scope=row>{text(row[0])}</th>"
        lines.append(f"<tr>{''.join(cells)}</tr>\n")
    above = f"<caption>{text(caption)}</caption>" if caption else ""
    head = f"<thead><tr>{top}</tr></thead>" if has_header else ""
    label = f' aria-label="{text(caption)}"' if caption else ' aria-label="table"'
    return Html(
        f'<div class="scroll" tabindex="0" role="region"{label}><table{" class=wide" if wide else ""}>{above}{head}'
        f"<tbody>\n{''.join(lines)}</tbody></table></div>\n"
    )
