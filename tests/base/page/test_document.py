"""Documents fetch nothing and run no script but their own; their data come back; colours can be read."""

from __future__ import annotations

import base64
import hashlib
import json
import re

import pytest

from gxpo.base.page import data, page, paragraph
from gxpo.base.page.document import DARK, LIGHT

HOSTILE = "</script><script>alert(1)</script><!-- <img src=x onerror=alert(2)> \u2028 \ud800 \u202e \x00 & ' \""


def test_data_comes_back_as_it_was() -> None:
    value = {"t": HOSTILE, "n": [1.5, None, True], "é": "\U0001f600"}
    element = data("rows", value)
    actual = re.fullmatch(r'<script type="application/json" id="rows">(.*)</script>\n', element)
    assert actual and json.loads(actual[1]) == value
    assert "<" not in actual[1] and ">" not in actual[1] and "\u2028" not in actual[1]
    with pytest.raises(ValueError):
        data("rows", float("nan"))


def test_policy_lets_only_the_pages_own_script_run() -> None:
    script = "document.title='x'"
    full_page = page("t", paragraph("b"), script)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in full_page and "default-src 'none'" in full_page
    assert f"<script>{script}</script>" in full_page
    assert "script-src 'none'" in page("t", paragraph("b"))
    assert not re.search(r"https?:|url\(|@import", full_page)
    for bad in ("'</SCRIPT>'", "'<!--'"):
        with pytest.raises(ValueError, match=r"data\(\)"):
            page("t", "b", bad)


def contrast(one: str, other: str) -> float:
    """WCAG 2.2: relative luminance of sRGB, (lighter + 0.05) / (darker + 0.05)."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_contrast_of_known_pairs() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21) and contrast("#777777", "#ffffff") == pytest.approx(
        4.48, abs=0.01
    )


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_ink_can_be_read_on_every_colour(mode: str) -> None:
    colours = LIGHT if mode == "light" else DARK
    for name in ("paper", "wash", "raised"):
        for ink in ("ink", "soft", "blue", "orange"):
            assert contrast(str(colours[ink]), str(colours[name])) >= 4.5, (ink, name)
        assert contrast(str(colours["focus"]), str(colours[name])) >= 3
    for scale in ("minus", "plus", "size"):
        steps = [contrast(str(colours["ink"]), c) for c in colours[scale]]
        assert min(steps) >= 4.5, scale
        assert steps == sorted(steps, reverse=True), scale  # further from the paper with size
