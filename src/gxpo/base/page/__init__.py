"""Self-contained HTML pages: what `report.html`, `gxpo explain` and `gxpo doctor --html` share.

A page is `page(title, body)`, whose body is the sum of the parts below. Markup is in Jinja's `parts.html`; whatever is
no `Html` yet is escaped when it is put into it, so a page consists only of text that was escaped once.
"""

from gxpo.base.page.chart import svg_chart
from gxpo.base.page.document import (
    bullets,
    charts,
    data,
    finding,
    folded,
    key_figures,
    masthead,
    page,
    paragraph,
    preformatted,
    section,
    table,
    verdict,
)
from gxpo.base.page.text import Html, text

__all__ = [
    "Html",
    "bullets",
    "charts",
    "data",
    "finding",
    "folded",
    "key_figures",
    "masthead",
    "page",
    "paragraph",
    "preformatted",
    "section",
    "svg_chart",
    "table",
    "text",
    "verdict",
]
