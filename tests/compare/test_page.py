"""The page of a comparison: what stands on it, that nothing else gets in, and its size."""

from __future__ import annotations

import dataclasses
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.compare.made import make_comparison, undecided

from gxpo.compare.page import page_of
from gxpo.compare.results import Arm, Budget, Comparison, Point, RunResult

HOSTILE = "<script>alert(1)</script>\"'&<img src=x onerror=alert(1)>\u202e\ud800"


class Drawn(HTMLParser):
    """Elements with attributes, and the text of each table row, heading, paragraph and summary."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.rows: list[list[str]] = []
        self.text: list[str] = []
        self.cell = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {k: v or "" for k, v in attrs}))
        if tag == "tr":
            self.rows.append([])
        self.cell = tag in ("td", "th")
        if self.cell:
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self.cell = self.cell and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        self.text.append(data)
        if self.cell:
            self.rows[-1][-1] += data

    def row(self, *start: str) -> list[str]:
        return next(r for r in self.rows if r[: len(start)] == list(start))


def drawn(tmp_path: Path, *made: Comparison) -> tuple[Drawn, str]:
    text = page_of(made, tmp_path / "compare.html").read_text(encoding="utf-8")
    return Drawn(text), text


def test_the_verdict_comes_first(tmp_path: Path) -> None:
    page, text = drawn(tmp_path, make_comparison())
    message = "dr_grpo is better than grpo by .050"
    body = text[text.index("<main>") :]
    assert 0 < body.index(message) < body.index("rloo can&#39;t be told from grpo") < body.index("<h2>")
    assert "rloo and dr_grpo against grpo: sums" in page.text
    assert "rloo: 1 of 4 runs ended before its budget" in page.text
    headings = re.findall("<h2>(.*?)</h2>", text)
    assert headings == ["Differences", "Curves", "Held-out tasks", "Cost", "Collapsed and failed runs", "Settings",
                        "To make it again"]  # fmt: skip
    kinds = [a["class"] for _, a in page.elements if a.get("class", "").startswith("verdict")]
    assert kinds == ["verdict healthy"]
    assert 'class="verdict note"' in drawn(tmp_path, undecided({"rloo": 140}))[1]


def test_figures_of_arms(tmp_path: Path) -> None:
    page, _ = drawn(tmp_path, make_comparison())
    assert page.row("dr_grpo", "4", ".200") == [
        "dr_grpo", "4", ".200", ".465 (.453 to .477)", "+.050 (+.029 to +.071)", ".01", ".02", ".94 (.89 to .99)",
        "better",
    ]  # fmt: skip
    assert page.row("grpo (base)", "4", ".200")[4:] == ["", "", "", "", ""]
    assert page.row("shuffled (control)", "4", ".200")[-1] == "worse"
    # seed 0 discards none, seed 3 48: 24 in the mean
    assert page.row("dr_grpo", "100 k") == ["dr_grpo", "100 k", "24", "1,000", "20", "3 min 24 s"]
    assert page.row("rloo", "100 k")[3] == "unknown"
    assert page.row("rloo", "4", "0", "1") and page.row("shuffled (control)", "4", "1", "0")
    assert page.row("rloo", "3", "ended early: the disk was full") == [
        "rloo", "3", "ended early: the disk was full", "runs/rloo/seed-3"
    ]  # fmt: skip
    assert page.row("optim.lr")[1:] == ["default", "0.0003", "default", "default"]
    assert page.row("method")[1:] == ["grpo", "dr_grpo", "rloo", "grpo"]
    assert page.row("rollout.group_size") == ["rollout.group_size", "8"]
    assert "gxpo compare grpo dr_grpo rloo --task arithmetic --seeds 4 --budget 100000" in page.text
    assert any("commit 0123abc" in t and "python 3.11.9" in t for t in page.text)


def test_figures_state_measure_budget_setting_and_learning_rate(tmp_path: Path) -> None:
    message = "eval_accuracy (more is better), 100,000 generated tokens a run, sums, learning rates as given"
    _, text = drawn(tmp_path, make_comparison())
    captions = re.findall("<figcaption>(.*?)</figcaption>", text)
    assert len(captions) == text.count("<svg ") == 2 + 4 + 1 and all(message in c for c in captions)
    tuned = make_comparison(tuned={"rloo": {"optim.lr": 1e-3}})
    _, text = drawn(tmp_path, tuned)
    assert "as given" not in text and "optim.lr tuned for each arm on other seeds" in text
    assert "optim.lr (tuned)" in text


def test_changes_of_held_out_tasks(tmp_path: Path) -> None:
    # against 11100000 (seed 3: also the last), 11011100 gains tasks 3, 4, 5 and loses task 2 in every seed
    page, _ = drawn(tmp_path, make_comparison())
    assert page.row("dr_grpo", "8") == ["dr_grpo", "8", "3", "1", "4", "3", "1"]
    assert page.row("rloo", "8") == ["rloo", "8", "1", "0", "7", "1", "0"]
    assert page.row("task 3", ".00", "1.00") == ["task 3", ".00", "1.00", "+1.00"]
    none = [
        dataclasses.replace(a, runs=[dataclasses.replace(r, after={}) for r in a.runs]) for a in make_comparison().arms
    ]
    page, _ = drawn(tmp_path, make_comparison(arms=none))
    assert "The runs recorded no verdicts of held-out tasks." in page.text


def test_curves_against_what_was_spent(tmp_path: Path) -> None:
    _, text = drawn(tmp_path, make_comparison())
    assert text.count("eval_accuracy against generated tokens</text>") == 1
    # four curves together, then each of three beside the base with two bands
    assert text.count("<polygon") == 6
    two = [a for a in make_comparison().arms if a.arm.label in ("grpo", "dr_grpo")]
    _, text = drawn(tmp_path, make_comparison(arms=two, budget=Budget("updates", 20)))
    assert text.count("<polygon") == 2 and "updates</text>" in text


def test_a_suite_begins_with_all_settings(tmp_path: Path) -> None:
    other = dataclasses.replace(undecided({"rloo": 140, "dr_grpo": 30}), setting="lakes")
    page, text = drawn(tmp_path, make_comparison(), other)
    assert "dr_grpo is better than grpo in 1 of 2 settings, can't be told from it in 1" in page.text
    assert "rloo can't be told from grpo in any one of 2 settings" in page.text
    assert page.row("sums", "dr_grpo")[2:6] == ["+.050 (+.029 to +.071)", ".02", "4", "better"]
    assert page.row("lakes", "dr_grpo")[5] == "undecided"
    # seed by seed dr_grpo ends at .45 + s/100 and grpo at .4 + s/100, in both settings
    assert page.row("mean of 2", "dr_grpo")[2].startswith("+.050")
    assert any(t.startswith("dr_grpo is better than grpo over all 2 settings: +.050") for t in page.text)
    assert "again for the means" in text
    assert text.index("All settings") < text.index("<details><summary>sums") < text.index("<details><summary>lakes")
    less = dataclasses.replace(make_comparison(), measure="eval_length", better="less")
    page, text = drawn(tmp_path, make_comparison(), less)
    assert "eval_length" in text and not any("over all 2 settings" in t for t in page.text)
    with pytest.raises(ValueError, match="no comparison"):
        page_of([], tmp_path / "compare.html")


def test_hostile_texts_do_nothing(tmp_path: Path) -> None:
    comparison = make_comparison(
        setting=HOSTILE, measure=HOSTILE, keys={HOSTILE: HOSTILE, "task": HOSTILE, "model": HOSTILE},
        tuned={HOSTILE: {HOSTILE: HOSTILE}}, commands=[HOSTILE], notes=[HOSTILE], versions={HOSTILE: HOSTILE},
    )  # fmt: skip
    arms = []
    for a in comparison.arms:
        name = f"{a.arm.label} {HOSTILE}"
        runs = [
            dataclasses.replace(r, path=HOSTILE, trouble=HOSTILE, after={f"{k} {HOSTILE}": 1.0 for k in r.after})
            for r in a.runs
        ]
        arms.append(dataclasses.replace(a, arm=Arm(name, {HOSTILE: name}, a.arm.kind), runs=runs, failed={0: HOSTILE}))
    differences = [dataclasses.replace(d, arm=f"{d.arm} {HOSTILE}", against=HOSTILE, sentence=HOSTILE)
                   for d in comparison.differences]  # fmt: skip
    comparison = dataclasses.replace(comparison, arms=arms, differences=differences)
    for several in ([comparison], [comparison, comparison]):
        page, text = drawn(tmp_path, *several)
        tags = {tag for tag, _ in page.elements}
        assert not tags & {"script", "img", "iframe", "link", "object"}
        assert not [a for _, a in page.elements if any(k.startswith("on") or k in ("src", "href") for k in a)]
        assert "alert(1)" in text and "\u202e" not in text and "<U+202E>" in "".join(page.text)


def test_one_seed_and_no_arm_make_a_page(tmp_path: Path) -> None:
    comparison = make_comparison()
    single = [dataclasses.replace(a, runs=a.runs[:1], end=dataclasses.replace(a.end, low=math.nan, high=math.nan))
              for a in comparison.arms]  # fmt: skip
    page, text = drawn(tmp_path, make_comparison(arms=single))
    assert page.row("dr_grpo", "4", ".200")[3] == ".465" and "nan" not in text
    comparison_of_one = make_comparison(
        arms=[a for a in comparison.arms if a.arm.kind == "base"], differences=[], notes=[]
    )
    page, _ = drawn(tmp_path, comparison_of_one)
    assert "nothing is compared: there is no arm beside the base" in page.text


def test_a_page_of_six_arms_and_twenty_seeds_is_below_2_mb(tmp_path: Path) -> None:
    points = [Point(i, 1234 * i, i, 1.5 * i, 0.1 + 0.003 * i) for i in range(120)]
    arms = []
    for k, a in enumerate([*make_comparison().arms, *make_comparison().arms[2:]]):
        runs = [
            RunResult(f"arm {k}", s, f"runs/arithmetic/arm-{k}/seed-{s}", points,
                      after={f"{t}: a held-out question of some length": float((t * (s + k + 1)) % 3 == 0)
                             for t in range(1000)})
            for s in range(20)
        ]  # fmt: skip
        arms.append(dataclasses.replace(a, arm=dataclasses.replace(a.arm, label=f"arm {k}"), runs=runs))
    actual = [
        dataclasses.replace(d, arm=f"arm {k}") for k, d in zip((0, 3, 2), make_comparison().differences, strict=True)
    ]
    path = page_of([make_comparison(arms=arms, differences=actual)], tmp_path / "compare.html")
    assert 50_000 < path.stat().st_size < 2_000_000


def test_runs_without_an_evaluation_are_named(tmp_path: Path) -> None:
    comparison = make_comparison()
    lost = [RunResult("rloo", s, f"runs/rloo/seed-{s}", [], trouble="no evaluation") for s in range(2)]
    arm = dataclasses.replace(comparison.arms[0], runs=lost, failed={0: "no evaluation", 1: "no evaluation"})
    page, text = drawn(tmp_path, make_comparison(arms=[arm, *comparison.arms[1:]]))
    assert page.row("rloo", "1", "ended early: no evaluation")[3] == "runs/rloo/seed-1"
    assert page.row("rloo", "0", "-") == ["rloo", "0", "-", "-", "-", "unknown", "unknown", "unknown",
                                          "runs/rloo/seed-0"]  # fmt: skip
    assert "nan" not in text
