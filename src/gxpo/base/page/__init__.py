"""Self-contained HTML pages: what `report.html`, `gxpo explain` and `gxpo doctor --html` share.

A page is `page(title, body)`, whose body is the sum of the parts below. Each part escapes what it is given, but for
`Html`, which parts return; a page can therefore be put together only from text that was escaped once.
"""

from gxpo.base.page.chart import svg_chart
from gxpo.base.page.document import data, page
from gxpo.base.page.parts import charts, folded, key_figures, masthead, paragraph, preformatted, section, table, verdict
from gxpo.base.page.text import Html, text

__all__ = [
    "Html",
    "charts",
    "data",
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
