"""`page`: a whole document that fetches nothing; `data`: what its script reads."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from typing import Any

from gxpo.base.page.text import Html, text

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
    f":root{{color-scheme:light dark;{_properties(LIGHT)};"
    "--sans:system-ui,-apple-system,'Segoe UI',Roboto,'Noto Sans',sans-serif;"
    "--mono:ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace}"
    f"@media(prefers-color-scheme:dark){{:root{{{_properties(DARK)}}}}}"
    """
*,::before,::after{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--paper);color:var(--ink);font:14px/1.5 var(--sans);font-variant-numeric:tabular-nums}
main{max-width:80rem;margin:0 auto;padding:1.6rem 1.5rem 4rem}
h1{font-size:1.5rem;line-height:1.2;font-weight:650;letter-spacing:-.012em;margin:0;overflow-wrap:anywhere}
h2{font-size:1rem;line-height:1.3;font-weight:650;margin:0 0 .7rem}
h3{font-size:.93rem;font-weight:650;margin:1rem 0 .3rem}
p{margin:.35rem 0;max-width:46rem}
.soft,.facts,figcaption,caption,.figures dt,.figures .note{color:var(--soft)}
.facts{margin:.35rem 0 0;max-width:none}.facts span+span::before{content:"\\00b7";margin:0 .5em}
section{border-top:1px solid var(--line);padding-top:.9rem;margin-top:1.7rem}
code,pre,.mono{font-family:var(--mono);font-size:.92em}
pre{margin:0;white-space:pre-wrap;overflow-wrap:anywhere;line-height:1.45;font-size:12.5px;unicode-bidi:plaintext}
pre.boxed{background:var(--wash);padding:.7rem .9rem;border-radius:4px}
.verdict{border-left:4px solid var(--mark);padding:.1rem 0 .1rem 1rem;margin:1.3rem 0 1.5rem;--mark:var(--blue)}
.verdict.critical,.verdict.warning{--mark:var(--orange)}.verdict.warning{border-left-style:double;border-left-width:6px}
.verdict .kind{color:var(--mark);font-weight:650;margin:0}
.verdict .said{font-size:1.22rem;line-height:1.35;font-weight:600;margin:.1rem 0 .35rem;max-width:56rem}
.verdict ul{margin:.2rem 0;padding-left:1.1rem}.verdict li{margin:.12rem 0;max-width:56rem}
.figures{display:flex;flex-wrap:wrap;margin:1.2rem 0;gap:.9rem 0}
.figures div{padding:0 1.5rem;border-left:1px solid var(--line)}
.figures div:first-child{padding-left:0;border:0}
.figures dt{font-size:.8rem}.figures dd{margin:0;font-size:1.3rem;line-height:1.3;font-weight:600}
.figures .note{display:block;font-size:.8rem;font-weight:400}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(24rem,100%),1fr));gap:1.4rem 2rem}
figure{margin:0;min-width:0}figure svg{width:100%;height:auto;display:block}
figcaption{font-size:.8rem;padding-left:.2rem;line-height:1.4}
.scroll{overflow-x:auto;max-width:100%}
table{border-collapse:collapse;font-size:13px}table.wide{width:100%}
caption{text-align:left;padding:0 0 .3rem;font-size:.8rem}
th,td{text-align:left;vertical-align:top;padding:.32rem .9rem .32rem 0;border-bottom:1px solid var(--line)}
th{font-weight:600;color:var(--soft)}thead th{white-space:nowrap}
td.n,th.n{text-align:right;white-space:nowrap}
td pre{min-width:12rem;max-width:46rem}
details{margin:.5rem 0}summary{cursor:pointer;font-weight:600}details>*+*{margin-top:.5rem}
a{color:var(--blue)}
:focus-visible{outline:2px solid var(--focus);outline-offset:2px;border-radius:2px}
.unseen{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%);white-space:nowrap}
"""
    + SCALES
    + """
@media(max-width:40rem){main{padding:1rem .8rem 3rem}h1{font-size:1.25rem}.verdict .said{font-size:1.08rem}
.figures{display:grid;grid-template-columns:1fr 1fr}.figures div,.figures div:first-child{padding:0 .6rem 0 0;border:0}
.figures dd{font-size:1.12rem}.facts span{display:block}.facts span+span::before{content:none}}
@media(prefers-reduced-motion:reduce){*,::before,::after{animation:none!important;transition:none!important;
scroll-behavior:auto!important}}
@media print{main{max-width:none;padding:0}section{break-inside:avoid}}
"""
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
