"""Links and anchors of the pages, and how `make docs` makes a site of them; without the builder."""

import functools
import os
import re
from pathlib import Path

from scripts.pages.docs_site.check_links import broken_links
from scripts.pages.docs_site.docstrings import as_rst, without_types
from scripts.pages.docs_site.stage import FENCED, LINK, Site, sections

ROOT = Path(__file__).parents[2]
GENERATED = ROOT / "docs" / "methods"
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "recipes/README.md")),
    *(path for path in sorted((ROOT / "docs").rglob("*.md")) if GENERATED not in path.parents),
]


def prose(page):
    """A page without its blocks of code."""
    return "".join(FENCED.split(page.read_text())[::2])


@functools.cache
def anchors(page):
    """Of its headings, as GitHub makes them: lower case, without punctuation, blanks as hyphens, numbered if equal."""
    actual = []
    for title in re.findall(r"^#+ (.+?)\s*$", prose(page), re.M):
        title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)
        name = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        actual.append(name if name not in actual else f"{name}-{sum(x == name for x in actual)}")
    return actual


def test_links_and_anchors_lead_somewhere():
    lost = []
    for page in PAGES:
        for _, link, _ in LINK.findall(prose(page)):
            if re.match(r"[a-z]+:", link):
                continue
            name, _, anchor = link.partition("#")
            target_page = page if not name else Path(os.path.normpath(page.parent / name))
            if not target_page.exists() or (anchor and anchor not in anchors(target_page)):
                lost.append((str(page.relative_to(ROOT)), link))
    assert len(PAGES) > 80 and lost == []


def test_navigation_has_every_page_once_under_its_heading():
    actual = dict(sections((ROOT / "docs" / "index.md").read_text()))
    assert list(actual) == ["Tutorial", "How-to", "Reference", "Explanation"]
    listed = [name for pages in actual.values() for name in pages]
    assert len(listed) == len(set(listed))
    assert {p.stem for p in (ROOT / "docs").glob("*.md")} - {"index"} <= set(listed)
    assert actual["Reference"]["methods/parts"] == "Parts" and actual["How-to"]["contributing"] == "Contribute code"


def test_links_lead_to_where_a_page_or_file_stands_in_the_site(tmp_path):
    for name, text in {
        "README.md": "[a](docs/a.md#b) ![p](docs/pictures/p.svg) `docs/methods/parts.md`\n```bash\n[x](y.md)\n```\n",
        "docs/a.md": "# A\n[home](../README.md) [code](../src/gxpo/x.py) [e](errata/e.md) [out](https://x.y/z.md)",
        "docs/errata/e.md": "[a](../a.md)",
        "docs/pictures/p.svg": "<svg/>",
        "src/gxpo/x.py": "x = 1\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    site = Site(tmp_path, tmp_path / "out")
    for name in ("README.md", "docs/a.md", "docs/errata/e.md"):
        site.put(name)
    site.code()
    read = {p.relative_to(site.out).as_posix(): p.read_text() for p in site.out.rglob("*") if p.is_file()}
    assert read["index.md"] == ("[a](a.md#b) ![p](pictures/p.svg) [parts](methods/parts.md)\n```bash\n[x](y.md)\n```\n")
    assert read["a.md"] == (
        "# A\n[home](index.md) [code](source/src/gxpo/x.py.md) [e](errata/e.md) [out](https://x.y/z.md)"
    )
    assert read["errata/e.md"] == "[a](../a.md)" and read["pictures/p.svg"] == "<svg/>"
    assert "nosearch: true" in read["source/src/gxpo/x.py.md"] and "x = 1" in read["source/src/gxpo/x.py.md"]


def test_docstrings_are_paragraphs_code_and_columns():
    lines = [
        "Ratio `rho` of a * b, and",
        "`more code` in x_.",
        "",
        "eps    added to it",
        "ddof   taken off",
        "",
        ">>> 1",
        "1",
    ]
    as_rst(lines)
    assert lines == [
        r"Ratio ``rho`` of a \* b, and ``more code`` in x\_.", "",
        "::", "", "    eps    added to it", "    ddof   taken off", "",
        ">>> 1", "1", "",
    ]  # fmt: skip


def test_signatures_of_classes_have_names_and_defaults():
    from gxpo.algorithms.credit import Relative

    signature, returned = without_types(Relative)
    assert signature.startswith("(value='outcome', group_by=('group',), unit='own'") and returned == ""
    assert "Annotated" not in signature and "<" not in signature


def test_a_link_that_leads_nowhere_in_a_built_site_is_named(tmp_path):
    (tmp_path / "a.html").write_text('<a href="b.html#there">1</a><a href="b.html#no">2</a><img src="no.png">')
    (tmp_path / "b.html").write_text('<h2 id="there">x</h2><a href="https://example.org/">3</a><a href="a.html">4</a>')
    assert broken_links(tmp_path) == ["a.html: b.html#no: no such anchor", "a.html: no.png: no such file"]
