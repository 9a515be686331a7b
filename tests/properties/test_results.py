"""docs/results.csv and the page made from it say what the studies' runs say."""

import gzip
import json
from pathlib import Path

import pytest

from gxpo.compare.files import COLUMNS, read_rows

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def results(script):
    return script("results")


def test_the_page_has_the_rows_of_the_file(results):
    text = (ROOT / "docs" / "results.md").read_text()
    output = text.partition(results.BEGIN)[2].partition(results.END)[0].strip().splitlines()
    assert output == results.table(read_rows(ROOT / "docs" / "results.csv"))


def test_forty_runs_of_one_method_are_a_row(results):
    """Mean of the ends, from the store by hand."""
    name = "d035b4e50d832e4e"  # of these keys in studies/runs.jsonl.gz
    lines = gzip.decompress((ROOT / "studies" / "runs.jsonl.gz").read_bytes()).decode().splitlines()
    rows = [row for line in lines if (row := json.loads(line))["digest"] == name and row["seed"] < 40]
    ends = [row["evaluations"][-1]["eval_accuracy"] for row in rows]
    assert len(ends) == 40
    row = next(r for r in read_rows(ROOT / "docs" / "results.csv") if r.study == "validity")
    assert row.end == pytest.approx(sum(ends) / 40, abs=1e-4)


def test_arms_follow_their_base_in_a_line(results, tmp_path):
    def line(method, against="", **more):
        fields = {c: "" for c in COLUMNS} | {
            "study": "s",
            "setting": "x",
            "method": method,
            "seeds": "5",
            "budget": "1",
        }
        fields |= {"measure": "eval_accuracy", "start": ".25", "end": ".5", "against": against, **more}
        return ",".join(fields[c] for c in COLUMNS)

    messages = {"difference": ".1", "low": ".05", "high": ".15", "verdict": "better"}
    unsure = {"difference": "-.02", "low": "-.1", "high": ".06", "verdict": "undecided", "keys": "credit.scale=none"}
    file = tmp_path / "results.csv"
    rows = [line("grpo"), line("dapo", "grpo", **messages), line("grpo", "grpo", **unsure), line("rloo")]
    file.write_text("\n".join([",".join(COLUMNS), *rows]) + "\n")
    assert results.table(read_rows(file))[2:] == [
        "| s | `x` | `grpo` .250 to .500, 5 seeds | **`dapo` +.100 (+.050 to +.150)**; "
        "`grpo credit.scale=none` -.020 (-.100 to +.060) |",
        "| s | `x` | `rloo` .250 to .500, 5 seeds | - |",
    ]


def test_rows_that_their_runs_do_not_say_are_named(results, tmp_path, monkeypatch):
    end = {"mean": 0.1, "low": 0.05, "high": 0.15}
    document = {
        "setting": "x",
        "keys": {},
        "differences": [{"arm": "dapo", "end": end}],
        "arms": [
            {"label": "grpo", "keys": {"method": "grpo"}, "start": {"mean": 0.25}, "end": {"mean": 0.5}},
            {"label": "dapo", "keys": {"method": "dapo"}, "start": {"mean": 0.25}, "end": {"mean": 0.6}},
        ],
    }
    (tmp_path / "compare.json").write_text(json.dumps(document))
    table = tmp_path / "results.csv"
    monkeypatch.setattr(results, "TABLE", table)
    base = "me,x,t,m,grpo,,1,tokens,3,eval_accuracy,0.25,0.5,,,,,,c,v"
    arm = "me,x,t,m,dapo,,1,tokens,3,eval_accuracy,0.25,0.6,0.1,0.05,{high},grpo,better,c,v"
    for high, wrong in (("0.15", []), ("0.16", ["x: no row of me says what the runs of dapo say"])):
        table.write_text("\n".join([",".join(COLUMNS), base, arm.format(high=high)]) + "\n")
        assert results.check(tmp_path / "compare.json", "me") == wrong
