"""The table in a terminal: order of the arms, figures, width."""

from __future__ import annotations

import dataclasses
import io
import math

import pytest
from rich.console import Console
from tests.compare.made import make_comparison

from gxpo.compare.results import Budget
from gxpo.compare.text import show


def shown(made, width: int = 200) -> list[str]:
    out = io.StringIO()
    show(made, Console(file=out, width=width, color_system=None))
    return out.getvalue().splitlines()


def row(lines: list[str], label: str) -> str:
    return next(line for line in lines if line.startswith(label) and "%" not in line and "told" not in line)


def test_verdict_is_the_first_line() -> None:
    lines = shown(make_comparison())
    assert lines[0] == "dr_grpo is better than grpo by .050 (95 % .029 to .071; 4 seeds, p .02 after Holm)"
    assert lines[1] == "rloo can't be told from grpo: n too small to say; about 140 seeds would"


def test_base_first_then_arms_by_their_end_then_controls() -> None:
    lines = shown(make_comparison())
    rule = next(i for i, line in enumerate(lines) if line.startswith("──"))
    rows = lines[rule + 1 : rule + 5]
    assert [r.split()[0] for r in rows] == ["grpo", "dr_grpo", "rloo", "shuffled"]
    assert "grpo (base)" in rows[0] and "shuffled (control)" in rows[3]
    less = make_comparison(better="less")
    assert [line.split()[0] for line in shown(less)[rule + 1 : rule + 5]] == ["grpo", "rloo", "dr_grpo", "shuffled"]


def test_every_column_on_a_wide_screen() -> None:
    lines = shown(make_comparison())
    cells = [c.strip() for c in row(lines, "dr_grpo").split("  ") if c.strip()]
    assert cells == ["dr_grpo", "4", ".200", ".465 (.453 to .477)", "+.050 (+.029 to +.071)", ".02", ".350", ".94", "0",
                     "100 k", "3 min 24 s"]  # fmt: skip
    base = [c.strip() for c in row(lines, "grpo (base)").split("  ") if c.strip()]
    assert base == ["grpo (base)", "4", ".200", ".415 (.403 to .427)", ".300", "0", "100 k", "3 min 24 s"]
    control = row(lines, "shuffled")
    assert "-.210 (-.250 to -.170)" in control and " 1 " in control and "<.001" in control


@pytest.mark.parametrize("width", [40, 60, 80, 100, 132])
def test_fits_the_screen_and_names_what_it_left_out(width: int) -> None:
    lines = shown(make_comparison(), width)
    assert max(map(len, lines)) <= width
    text = " ".join(" ".join(lines).split())
    assert "less base" in text and "+.050 (+.029 to +.071)" in text
    assert ("Not shown for width:" in text) == (width < 132)
    if width == 80:
        assert ".465 (.453 to .477)" in text and "Not shown for width: start, area" in text
        assert "runs that ended below half of their best: shuffled 1 of 4" in text


def test_long_labels_take_several_lines() -> None:
    label = "grpo:credit.scale=none+objective.ratio_max=3"
    comparison = make_comparison()
    arms = [dataclasses.replace(a, arm=dataclasses.replace(a.arm, label=label)) if a.arm.label == "rloo" else a
            for a in comparison.arms]  # fmt: skip
    lines = shown(make_comparison(arms=arms, notes=[]), 80)
    assert max(map(len, lines)) <= 80 and "+.050 (+.029 to +.071)" in " ".join(lines)
    first = next(i for i, line in enumerate(lines) if line.startswith("grpo:"))
    assert "".join(line.split(" ")[0] for line in lines[first : first + 3]) == label


def test_caption_names_measure_budget_setting_and_learning_rate() -> None:
    text = " ".join(shown(make_comparison()))
    assert "eval_accuracy (more is better), 100,000 generated tokens a run, sums, learning rates as given" in text
    tuned = make_comparison(
        tuned={"grpo": {"optim.lr": 1e-3}, "rloo": {"optim.lr": 3e-4}}, budget=Budget("seconds", 60)
    )
    text = " ".join(shown(tuned))
    assert "60 seconds a run" in text and "optim.lr tuned for each arm on other seeds" in text
    assert "one learning rate" not in text


def test_notes_and_runs_that_ended_early() -> None:
    lines = shown(make_comparison())
    assert "rloo: 1 of 4 runs ended before its budget" in lines
    assert "ended before its budget: rloo, seed 3: the disk was full" in lines


def test_one_seed_has_no_interval() -> None:
    comparison = make_comparison()
    arms = [
        dataclasses.replace(a, end=dataclasses.replace(a.end, low=math.nan, high=math.nan)) for a in comparison.arms
    ]
    assert [c.strip() for c in row(shown(make_comparison(arms=arms)), "dr_grpo").split("  ") if c.strip()][3] == ".465"


def test_what_users_wrote_is_not_markup() -> None:
    assert "[red]x[/red] [/] :smile:" in shown(make_comparison(notes=["[red]x[/red] [/] :smile:"]))
