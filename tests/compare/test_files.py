"""JSON, CSV and rows of results of a comparison made by hand."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
from pathlib import Path

import pytest
from tests.compare.made import make_comparison

from gxpo.base.errors import CheckpointError, RecordError
from gxpo.compare import files
from gxpo.compare.curves import mean_curve
from gxpo.compare.results import Budget, Point, RunResult


def strict(text: str) -> object:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


def test_json_holds_finite_numbers_and_no_verdicts_of_tasks(tmp_path: Path) -> None:
    actual = strict(files.write_json(make_comparison(), tmp_path / "compare.json").read_text())
    assert isinstance(actual, dict)
    assert actual["schema"] == "gxpo.compare/1" and actual["budget"] == {"unit": "tokens", "amount": 100_000}
    assert [a["label"] for a in actual["arms"]] == ["rloo", "grpo", "shuffled", "dr_grpo"]
    run = actual["arms"][3]["runs"][2]
    assert run["path"] == "runs/dr_grpo/seed-2" and run["judge_tokens"] == 1000 and run["discarded_rollouts"] == 32
    assert [p["tokens"] for p in run["points"]] == [0, 50_000, 100_000]
    assert [p["value"] for p in run["points"]] == pytest.approx([0.2, 0.37, 0.47])
    assert run["figures"] == {"eval_length": 12.5, "eval_odd": None}
    assert actual["arms"][0]["runs"][0]["judge_tokens"] is None
    assert actual["arms"][0]["failed"] == {"3": "the disk was full"}
    assert "task 0" not in json.dumps(actual)
    better = actual["differences"][1]
    assert (better["arm"], better["verdict"], better["seeds_needed"]) == ("dr_grpo", "better", 4)
    assert better["end"]["low"] == pytest.approx(0.0287) and actual["differences"][2]["p_adjusted"] is None


def test_csv_has_a_line_for_each_run(tmp_path: Path) -> None:
    path = files.write_csv(make_comparison(), tmp_path / "compare.csv")
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 16 and list(rows[0])[:4] == ["setting", "arm", "kind", "seed"]
    first = next(r for r in rows if r["arm"] == "dr_grpo" and r["seed"] == "1")
    # (.2 + .36) / 2 over the first half of the budget, (.36 + .46) / 2 over the second: .5 x .28 + .5 x .41
    assert first["area"] == "0.345" and first["start"] == "0.2" and first["end"] == "0.46"
    assert first["tokens"] == "100000" and first["judge_tokens"] == "1000" and first["seconds"] == "60"
    failed = next(r for r in rows if r["arm"] == "rloo" and r["seed"] == "3")
    assert failed["trouble"] == "the disk was full" and failed["judge_tokens"] == ""
    # (.2 + .33) / 2 over the first half, then .33 kept: .5 x .265 + .5 x .33
    assert failed["area"] == "0.2975"
    assert {r["kind"] for r in rows if r["arm"] == "shuffled"} == {"control"}
    twice = files.write_csv([make_comparison(), make_comparison(setting="lakes")], tmp_path / "suite.csv")
    assert len(twice.read_text().splitlines()) == 33


def test_collapsed_runs_are_marked(tmp_path: Path) -> None:
    points = [Point(0, 0, 0, 0.0, 0.2), Point(1, 5, 1, 1.0, 0.5), Point(2, 10, 2, 2.0, 0.24)]
    comparison = make_comparison()
    arm = dataclasses.replace(comparison.arms[1], runs=[RunResult("grpo", 0, "a", points)])
    path = files.write_csv(make_comparison(arms=[arm], budget=Budget("tokens", 10)), tmp_path / "a.csv")
    assert path.read_text().splitlines()[1].split(",")[12] == "1"


def test_rows_come_back_and_are_one_for_each_arm(tmp_path: Path) -> None:
    comparison = make_comparison(tuned={"rloo": {"optim.lr": 0.001}})
    lines = files.row(comparison, "remedies, pilot")
    path = tmp_path / "results.csv"
    path.write_text("\n".join([files.heading(), *lines]) + "\n")
    assert files.heading() == (
        "study,setting,task,model,method,keys,budget,unit,seeds,measure,start,end,difference,low,high,against,verdict,"
        "commit,version"
    )
    assert lines[1] == (
        '"remedies, pilot",sums,arithmetic,tiny,grpo,,100000,tokens,4,eval_accuracy,0.2,0.415,,,,,,0123abc,0.1.0'
    )
    rows = {(r.method, r.keys): r for r in files.read_rows(path)}
    assert list(rows) == [("rloo", "optim.lr=0.001"), ("grpo", ""), ("grpo", "scoring.shuffle=True"),
                          ("dr_grpo", "optim.lr=0.0003")]  # fmt: skip
    better = rows["dr_grpo", "optim.lr=0.0003"]
    assert (better.study, better.seeds, better.verdict, better.against) == ("remedies, pilot", 4, "better", "grpo")
    assert (better.difference, better.low, better.high) == (0.05, 0.0287, 0.0713)
    assert math.isnan(rows["grpo", ""].difference)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1: the columns are study"),
        ("study,setting\n", "line 1: the columns are study"),
        (f"{files.heading()}\na,b\n", "row 1: 2 cells; a row has 19"),
        (f"{files.heading()}\n{','.join(['x'] * 19)}\n", "row 1: budget is 'x'; write a number"),
    ],
)
def test_a_damaged_table_of_results_is_named(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "results.csv"
    path.write_text(text)
    with pytest.raises(RecordError, match=said):
        files.read_rows(path)


def test_nothing_half_written(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not written"):
        files.write_json(make_comparison(), tmp_path / "missing" / "compare.json")
    files.write_json(make_comparison(), tmp_path / "compare.json")
    assert [p.name for p in tmp_path.iterdir()] == ["compare.json"]


def test_mean_curves_share_a_grid() -> None:
    # two runs with other points: at 0, 5 and 10 of the budget .0/.2, .5/.2, 1./.4 (the second is linear from 4 to 10)
    one = RunResult("a", 0, "", [Point(0, 0, 0, 0.0, 0.0), Point(1, 5, 1, 1.0, 0.5), Point(2, 10, 2, 2.0, 1.0)])
    two = RunResult("a", 1, "", [Point(0, 0, 0, 0.0, 0.2), Point(1, 4, 1, 1.0, 0.1), Point(2, 10, 2, 2.0, 0.4)])
    curve = mean_curve([one, two], Budget("tokens", 12))
    assert [x for x, _ in curve.points] == [0, 5, 10]
    assert [y for _, y in curve.points] == pytest.approx([0.1, 0.325, 0.7])
    # 12.706 is Student's 97.5% quantile with one degree of freedom; the error of the mean of .0 and .2 is .1
    assert curve.band[0] == pytest.approx((0, 0.1 - 1.2706, 0.1 + 1.2706), abs=1e-4)
    assert mean_curve([one], Budget("updates", 2)).band == []
    # cut at the budget: the second is .1 + (8 - 4) / 6 x .3 = .3 there
    assert mean_curve([one, two], Budget("tokens", 8)).points[-1] == pytest.approx((8, 0.55))
    early = dataclasses.replace(two, points=two.points[:2], trouble="killed")
    assert [y for _, y in mean_curve([one, early], Budget("tokens", 10)).points] == [0, 0.5, 1]


def test_a_run_without_an_evaluation_is_written_all_the_same(tmp_path: Path) -> None:
    comparison = make_comparison()
    arm = dataclasses.replace(
        comparison.arms[0], runs=[RunResult("rloo", 9, "runs/rloo/seed-9", [], trouble="no evaluation")]
    )
    comparison = make_comparison(arms=[arm, *comparison.arms[1:]])
    line = files.write_csv(comparison, tmp_path / "a.csv").read_text().splitlines()[1]
    assert line == "sums,rloo,arm,9,,,,,0,,,,0,no evaluation,runs/rloo/seed-9"
    run = files.to_json(comparison)["arms"][0]["runs"][0]
    assert run["end"] is None and run["tokens"] is None and run["points"] == []
