"""Generated method pages: complete, linked, and pictures that show what is computed."""

import re
import subprocess
import sys
import xml.etree.ElementTree as tree
from pathlib import Path

import pytest

import gxpo
from gxpo.explain.effect import Effect, effect
from gxpo.explain.effect_picture import effect_picture, number
from gxpo.explain.method_page import INDICES, pages
from gxpo.methods import METHODS

DOCS = Path(__file__).parents[2] / "docs"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def written():
    return pages()


def test_make_docs_writes_the_pages_and_removes_those_of_methods_that_are_gone(written, tmp_path):
    (tmp_path / "gone.md").write_text("a method that was taken out")
    command = [sys.executable, str(DOCS.parent / "scripts" / "make_docs.py"), "--out", str(tmp_path)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert {p.name: p.read_text(encoding="utf-8") for p in tmp_path.iterdir()} == written
    assert f"{len(written)} files" in said


def test_every_method_has_a_page_and_the_index_leads_to_it(written):
    index = "".join(written[name] for name in INDICES)
    assert set(re.findall(r"\]\((\w+)\.md\)", index)) - {"index", "more"} == set(METHODS)
    assert {n for n in written if n.endswith(".md")} == {*INDICES, *(f"{name}.md" for name in METHODS)}
    assert f"{len(METHODS)} methods: " in index


def test_pages_begin_with_a_command_and_are_short(written):
    for name, text in written.items():
        if name.endswith(".md"):
            assert "```bash" in "".join(text.splitlines(True)[:4]) and len(text.splitlines()) <= 150, name
            assert len(re.findall(r"^```", text, re.M)) % 2 == 0, name


def test_links_lead_somewhere(written):
    for name, text in written.items():
        if not name.endswith(".md"):
            continue
        for link in re.findall(r"\]\(([^)]+)\)", re.sub(r"```.*?```", "", text, flags=re.S)):
            if not link.startswith("http"):
                assert link in written or (DOCS / "methods" / link).resolve().is_file(), f"{name}: {link}"


def test_reconstructions_are_called_that(written):
    for name, definition in METHODS.items():
        text = written[f"{name}.md"]
        assert f"Evidence `{definition.evidence}`" in text
        if definition.evidence == "reconstruction":
            assert "not verified" in text and not re.search(r"(?<!not )verified", text), name


# ---------------------------------------------------------------- pictures
def test_pictures_are_small_and_shown(written):
    shown = {found for text in written.values() for found in re.findall(r"!\[[^]]*\]\(([^)]+)\)", text)}
    drawn = {name for name in written if name.endswith(".svg")}
    assert shown == drawn and "grpo.svg" in drawn and "gspo.svg" not in drawn
    assert all(len(written[name]) < 15_000 for name in drawn)


def points(svg, kind):
    root = tree.fromstring(svg)
    lines = [p for p in root.iter(f"{SVG}polyline") if p.get("class") == kind]
    return [[tuple(map(float, pair.split(","))) for pair in p.get("points").split()] for p in lines]


def test_a_picture_has_a_point_for_every_composition():
    base, rloo = (effect(gxpo.method(name)) for name in ("grpo", "rloo"))
    svg = effect_picture(rloo, base, "rloo")
    assert svg == effect_picture(rloo, base, "rloo")
    (right,), (wrong,), both = (points(svg, kind) for kind in ("right", "wrong", "base"))
    assert len(right) == len(wrong) == 8 and [len(b) for b in both] == [8, 8]
    assert [x for x, _ in right][1:] == [*[x for x, _ in wrong][2:], right[-1][0]]  # c = 1..8 and 0..7
    # heights: GRPO's +2.474867 at c = 1 is the picture's highest, and 3 the top of its axis (y 14), -3 the bottom (210)
    high = 14 + 196 * (3 - 2.474867) / 6
    assert both[0][0][1] == pytest.approx(high, abs=0.06)
    assert right[0][1] == pytest.approx(14 + 196 * (3 - 1) / 6, abs=0.06)  # RLOO's lone success: 1


def test_what_is_beyond_the_picture_is_a_number_at_its_edge():
    far = Effect((None, *[1000.0] * 8), (*[0.0] * 8, None))
    svg = effect_picture(far, effect(gxpo.method("grpo")), "far")
    (right,) = points(svg, "right")
    assert {y for _, y in right} == {14.0} and svg.count(">1000<") == 8
    assert [number(x) for x in (1142.9, -0.33333, 2.0, -1e-9)] == ["1143", "-0.333", "2", "0"]
