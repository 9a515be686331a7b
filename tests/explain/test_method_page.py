"""Generated method pages: complete, linked, and pictures that show what is computed."""

import re
from importlib import import_module
from pathlib import Path

import pytest

import gxpo
from gxpo.explain.catalogue import EVIDENCE_MEANING, families
from gxpo.explain.effect import RATIOS, Effect, SurrogateEffect, effect, surrogate_effect
from gxpo.explain.method_page import INDICES, effect_figure, number, pages, surrogate_figure, svg
from gxpo.explain.reference_pages import reference
from gxpo.methods import METHODS

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def written():
    return pages(lambda figure: "drawn")


@pytest.mark.slow
def test_make_docs_writes_pages_and_removes_old_ones(written, tmp_path, monkeypatch, capsys):
    (tmp_path / "gone.md").write_text("a method that was taken out")
    script = import_module("scripts.pages.make_docs")
    drawn_function = lambda draw: {name: text if name.endswith(".md") else draw(None) for name, text in written.items()}  # noqa: E731
    monkeypatch.setattr(script, "pages", drawn_function)
    monkeypatch.setattr("sys.argv", ["make_docs.py", "--no-pictures", "--out", str(tmp_path)])
    script.main()
    assert {p.name: p.read_text(encoding="utf-8") for p in tmp_path.iterdir()} == {
        name: text for name, text in (written | reference()).items() if name.endswith(".md")
    }
    assert f"{len(METHODS) + len(INDICES) + 1 + len(families()) + len(reference())} files" in capsys.readouterr().out


@pytest.mark.slow
def test_every_method_has_a_page_and_the_index_leads_to_it(written):
    index = "".join(written[name] for name in INDICES)
    beside = {"families", *(name.removesuffix(".md") for name in INDICES)}
    assert set(re.findall(r"\]\((\w+)\.md\)", index)) - beside == set(METHODS)
    pages = {n for n in written if n.endswith(".md") and not n.startswith("family_")}
    assert pages == {*INDICES, "families.md", *(f"{name}.md" for name in METHODS)}
    assert f"{len(METHODS)} methods: " in index


@pytest.mark.slow
def test_pages_begin_with_a_command_and_are_short(written):
    for name, text in written.items():
        if name.endswith(".md"):
            assert "```bash" in "".join(text.splitlines(True)[:4]) and len(text.splitlines()) <= 150, name
            assert len(re.findall(r"^```", text, re.M)) % 2 == 0, name


@pytest.mark.slow
def test_links_lead_somewhere(written):
    for name, text in written.items():
        if not name.endswith(".md"):
            continue
        for link in re.findall(r"\]\(([^)]+)\)", re.sub(r"```.*?```", "", text, flags=re.S)):
            if not link.startswith("http"):
                assert link in written or (DOCS / "methods" / link).resolve().is_file(), f"{name}: {link}"


@pytest.mark.slow
def test_reconstructions_are_called_that(written):
    for name, definition in METHODS.items():
        text = written[f"{name}.md"]
        assert EVIDENCE_MEANING[definition.evidence][1:] in text and "Measured: " in text
        if definition.evidence == "reconstruction":
            assert "not verified" in text and not re.search(r"(?<!not )verified", text), name


# ---------------------------------------------------------------- pictures
@pytest.mark.slow
def test_every_picture_is_shown(written):
    linked = {link for text in written.values() for link in re.findall(r"!\[[^]]*\]\(([^)]+)\)", text)}
    pictures = {name for name in written if name.endswith(".svg")}
    assert linked == pictures and "grpo.svg" in pictures and "gspo.svg" not in pictures


def lines(figure):
    """{label: [(x, y) of its points]}; of the base's two lines the last."""
    return {line.get_label(): list(map(tuple, line.get_xydata())) for line in figure.axes[0].lines}


def test_a_picture_has_a_point_for_every_composition():
    base, rloo = (effect(gxpo.method(name)) for name in ("grpo", "rloo"))
    line_by_label = lines(effect_figure(rloo, base, "rloo"))
    right, wrong = line_by_label["rloo, a right one"], line_by_label["a wrong answer"]
    assert [x for x, _ in right] == list(range(1, 9)) and [x for x, _ in wrong] == list(range(8))
    assert right[0][1] == pytest.approx(1.0)  # RLOO's lone success: 1 - 0
    assert wrong[-1][1] == pytest.approx(-1.0)  # and its lone failure: 0 - 1
    assert max(y for _, y in lines(effect_figure(base, base, "x"))["x, a right one"]) == pytest.approx(
        2.474867, abs=1e-5
    )
    assert svg(effect_figure(rloo, base, "rloo")) == svg(effect_figure(rloo, base, "rloo"))


def test_what_is_beyond_the_picture_is_a_number_at_its_edge():
    far = Effect((None, *[1000.0] * 8), (*[0.0] * 8, None))
    figure = effect_figure(far, effect(gxpo.method("grpo")), "far")
    assert {y for _, y in lines(figure)["far, a right one"]} == {8.0}
    assert [t.get_text() for t in figure.axes[0].texts] == ["1000"] * 8
    assert [number(x) for x in (1142.9, -0.33333, 2.0, -1e-9)] == ["1143", "-0.333", "2", "0"]


def test_a_picture_has_the_curve_of_each_sign_over_the_bases():
    base, cispo = (surrogate_effect(gxpo.method(name)) for name in ("grpo", "cispo"))
    line_by_label = lines(surrogate_figure(cispo, base, "cispo"))
    right, wrong = line_by_label["cispo, A > 0"], line_by_label["A < 0"]
    assert right == wrong and [x for x, _ in right] == list(RATIOS)
    assert right[0] == pytest.approx((0.02, 0.02)) and right[-1] == pytest.approx((4.0, 1.28))
    assert line_by_label["grpo"][-1] == pytest.approx((4.0, 4.0))  # A < 0: no bound above


def test_negative_weights_are_drawn_down_to_the_edge():
    base = surrogate_effect(gxpo.method("grpo"))
    pulled = SurrogateEffect(tuple(1 - 3 * (r - 1) for r in RATIOS), tuple(r for r in RATIOS))
    right = lines(surrogate_figure(pulled, base, "x"))["x, A > 0"]
    assert right[-1][1] == -2.0 and right[0][1] == pytest.approx(1 + 3 * 0.98)  # 1 - 3 (4 - 1) = -8 is held at -2
