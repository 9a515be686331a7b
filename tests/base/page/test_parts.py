"""Parts of pages show any text as text."""

from __future__ import annotations

from gxpo.base.page import Html, data, folded, key_figures, masthead, page, paragraph, section, table, text, verdict

HOSTILE = "</script><script>alert(1)</script><!-- <img src=x onerror=alert(2)> \u2028 \ud800 \u202e \x00 & ' \""


def test_text_is_escaped_once_and_shows_what_hides() -> None:
    assert text("a<b>&\"'") == "a&lt;b&gt;&amp;&#34;&#39;"
    assert text(text("<")) == "&lt;"
    assert text("x\u202ey\ud83dz\x07\u2028\tq\n") == "x&lt;U+202E&gt;y&lt;U+D83D&gt;z\u2407&lt;U+2028&gt;\tq\n"
    assert Html("<b>") + "<i>" == "<b>&lt;i&gt;" and "<i>" + Html("<b>") == "&lt;i&gt;<b>"


def test_every_part_escapes() -> None:
    body = (
        masthead(HOSTILE, [HOSTILE]) + verdict("critical", HOSTILE, [HOSTILE], label=HOSTILE)
        + key_figures([(HOSTILE, HOSTILE, HOSTILE)]) + table([HOSTILE], [[HOSTILE]], caption=HOSTILE)
        + section(HOSTILE, HOSTILE, folded(HOSTILE, HOSTILE)) + paragraph(HOSTILE) + data("d", [HOSTILE])
    )  # fmt: skip
    full_page = page(HOSTILE, body)
    assert (
        "<img" not in full_page and "<script>" not in full_page and "<!--" not in full_page and "\x00" not in full_page
    )
    assert full_page.count("</script>") == 1
    full_page.encode("utf-8")


def test_tables_have_captions_number_columns_and_row_headings() -> None:
    full_table = table(["name", "value"], [["a", 1], ["b", 2]], numbers=["value"], caption="c")
    assert "<caption>c</caption>" in full_table and '<th scope=col class="n">value</th>' in full_table
    assert '<td>a</td><td class="n">1</td>' in full_table and 'class="scroll"' in full_table
    assert "<th scope=row>a</th><td>1</td>" in table(["", ""], [["a", 1]])
