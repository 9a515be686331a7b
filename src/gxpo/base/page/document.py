"""`page`: a whole document that fetches nothing; `data`: what its script reads."""

from __future__ import annotations

import base64
import hashlib
import json
import re
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


# ---------------------------------------------------------------- style
# `STYLE`: colours, type and layout of every page, for light and dark, 1280 and 400 pixels.
#
# Two colour scales, each with its numbers beside it wherever it is used. Diverging: orange is below zero, blue above,
# which readers with any of the common colour deficiencies tell apart; class `d-5`...`d-1`, `d0`, `d1`...`d5`.
# Sequential: violet, darker (on dark: lighter) with size; class `q0`...`q5`. Ink on each colour has a contrast of 4.5
# or more.
LIGHT = {
    "paper": "#fdfdfc", "wash": "#f3f4f4", "raised": "#ffffff", "ink": "#1a1d22", "soft": "#58606b", "line": "#dcdfe3",
    "blue": "#1a5fb0", "orange": "#a34608", "focus": "#0b63d6",
    "minus": ("#fbe9d9", "#f8d5b5", "#f4bd8b", "#eea563", "#e78d3c"),
    "plus": ("#e2edf9", "#c8dff5", "#a9cdf0", "#88b9ea", "#66a4e2"),
    "size": ("#f3f4f4", "#e9e5f3", "#d8d0ea", "#c4b8e0", "#ae9ed4", "#9884c8"),
}  # fmt: skip
DARK = {
    "paper": "#141619", "wash": "#1c1f24", "raised": "#22262c", "ink": "#e7e9ec", "soft": "#a2a9b3", "line": "#333941",
    "blue": "#7fb5f5", "orange": "#f4a261", "focus": "#8cc0ff",
    "minus": ("#33261b", "#4a311c", "#63401e", "#7d4d1d", "#97591a"),
    "plus": ("#1b2937", "#1d3750", "#1f476b", "#215787", "#2467a3"),
    "size": ("#1c1f24", "#28263a", "#353051", "#443c6a", "#544985", "#6557a1"),
}  # fmt: skip


def _properties(colours: dict[str, str | tuple[str, ...]]) -> str:
    out = []
    for name, value in colours.items():
        if isinstance(value, str):
            out.append(f"--{name}:{value}")
        else:
            first = 0 if name == "size" else 1
            out += [f"--{name}{i}:{c}" for i, c in enumerate(value, first)]
    return ";".join(out)


SCALES = "".join(
    [f".d{i}{{background:var(--plus{i})}}.d-{i}{{background:var(--minus{i})}}" for i in range(1, 6)]
    + [f".q{i}{{background:var(--size{i})}}" for i in range(6)]
)

STYLE = (
    f":root{{color-scheme:light dark;{_properties(LIGHT)}}}"
    f"@media(prefers-color-scheme:dark){{:root{{{_properties(DARK)}}}}}\n"
    f"{(Path(__file__).parent / 'style.css').read_text(encoding='utf-8')}{SCALES}\n"
)


# ---------------------------------------------------------------- document
# In a script element `</script`, `<script` and `<!--` end or change it; the separators end a line of older JavaScript;
# half a surrogate pair has no UTF-8.
OUTSIDE_JSON = re.compile("[<>&\u2028\u2029\ud800-\udfff]")


def page(title: str, body: str, script: str = "", style: str = "") -> str:
    """The whole document. Its policy lets no address be fetched and no script but this one run.

    title   plain text
    body    `Html`, the sum of parts
    script  JavaScript, written by us; what came from a run goes in by `data`, never here
    style   more CSS of this page
    """
    if re.search("</script|<!--", script, re.IGNORECASE):
        raise ValueError("a page's script may hold neither </script nor <!--; give what came from a run by data()")
    # the policy names the script by its hash, so that a script that came in with a run's texts never runs
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    script_source = f"'sha256-{digest}'" if script else "'none'"
    policy = (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {script_source}; base-uri 'none'; "
        "form-action 'none'"
    )
    return str(MACROS.page(title, policy, STYLE + style, text(body), script))


def data(name: str, value: Any) -> Html:
    """A script element of that id with the value as JSON, read by `JSON.parse(document.getElementById(name)
    .textContent)`. No text within it can end the element."""
    compact = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    safe = OUTSIDE_JSON.sub(lambda m: f"\\u{ord(m[0]):04x}", compact)
    return Html(f'<script type="application/json" id="{text(name)}">{safe}</script>\n')
