"""The page of families: which lines a picture has."""

import pytest

from gxpo.explain.effect import RATIOS, Effect, SurrogateEffect
from gxpo.explain.family_page import family_figure, family_pages

BASE = Effect((None, *[1.0] * 8), (*[-1.0] * 8, None))
HALF = Effect((None, *[0.5] * 8), (*[-1.0] * 8, None))
FLAT = SurrogateEffect(tuple(1.0 for _ in RATIOS), tuple(1.0 for _ in RATIOS))


def legends(figure):
    return [[t.get_text() for t in axes.get_legend().get_texts()] for axes in figure.get_axes()]


def test_equal_members_share_a_line_and_those_like_grpo_are_left_out():
    effects = {"grpo": BASE, "like_grpo": BASE, "one": HALF, "two": HALF, "unknown": "needs a value head"}
    curves = dict.fromkeys(effects, FLAT)
    figure = family_figure(["like_grpo", "one", "two", "unknown"], effects, curves)
    assert legends(figure) == [["grpo", "one, two"]]
    assert family_figure(["like_grpo", "unknown"], effects, curves) is None


@pytest.mark.parametrize("family, name", [("clips", "gspo"), ("flows", "flow_grpo")])
def test_page_lists_members_under_their_family(family, name):
    rows = [{"name": name, "family": family, "idea": "a|b", "evidence": "paper"}]
    effects, curves = {"grpo": BASE, name: HALF}, {"grpo": FLAT, name: "no ratio"}
    files = family_pages(rows, effects, curves, lambda figure: "picture")
    assert set(files) >= {"families.md", f"family_{family}.md", f"family_{family}.svg"}
    assert sum(file.endswith(".svg") for file in files) == 1
    assert f"](family_{family}.md), 1 methods: " in files["families.md"]
    assert f"| [{name}]({name}.md) | a\\|b | formula read in the paper |" in files[f"family_{family}.md"]
