"""`page`: a whole document that fetches nothing; `data`: what its script reads."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from typing import Any

from gxpo.base.page.style import STYLE
from gxpo.base.page.text import Html, text

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
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    allowed = f"'sha256-{digest}'" if script else "'none'"
    policy = (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {allowed}; base-uri 'none'; "
        "form-action 'none'"
    )
    code = f"<script>{script}</script>\n" if script else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{text(title)}</title><style>{STYLE}{style}</style></head>\n"
        f"<body><main>\n{text(body)}\n</main>\n{code}</body></html>\n"
    )


def data(name: str, value: Any) -> Html:
    """A script element of that id with the value as JSON, read by `JSON.parse(document.getElementById(name)
    .textContent)`. No text within it can end the element."""
    compact = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    safe = OUTSIDE_JSON.sub(lambda m: f"\\u{ord(m[0]):04x}", compact)
    return Html(f'<script type="application/json" id="{text(name)}">{safe}</script>\n')
