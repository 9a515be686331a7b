"""Which rows are measured, in what order, and what is kept when something fails."""

import json
import sys
from importlib import metadata

import pytest

from gxpo.base.errors import ConfigError, MissingExtra
from gxpo.bench import runner, suites
from gxpo.bench.plan import Entry, Plan
from gxpo.bench.runner import BenchError
from gxpo.bench.suites import Suite


@pytest.fixture
def measured(monkeypatch):
    """Suites of rows that are not measured; gives the names of the entries that were asked for."""
    asked_names = []

    def entry(name, *below):
        def measure(plan):
            asked_names.append(name)
            return [{"name": f"{name}/{b}" if name else b, "ratio": 1.0} for b in below] or [{"name": name, "ratio": 2}]

        return Entry(name, measure, timed=False)

    fields = {
        "one": Suite("", lambda plan: [entry("tiny/16"), entry("tiny/256"), entry("smollm2/16")]),
        "many": Suite("", lambda plan: [entry("full/8", "step1", "step2"), entry("ragged/8", "step1")]),
        "whole": Suite("", lambda plan: [entry("", "gae/1000", "opo/1000")]),
    }
    monkeypatch.setattr(suites, "SUITES", fields)
    return asked_names


@pytest.fixture
def plan(tmp_path):
    return Plan(tmp_path / "work", threads=1)


def names(results):
    return [row["name"] for row in results.rows]


def run(suite, chosen, plan, out=None):
    return suites.run(suite, chosen, plan, out, lambda results: None)


@pytest.mark.parametrize(
    ("suite", "chosen", "expected"),
    [
        ("one", [], ["tiny/16", "tiny/256", "smollm2/16"]),
        ("one", ["tiny"], ["tiny/16", "tiny/256"]),
        ("one", ["tiny/2", "smol"], ["tiny/256", "smollm2/16"]),
        ("many", ["full/8"], ["full/8/step1", "full/8/step2"]),
        ("many", ["full/8/step2"], ["full/8/step2"]),
        ("whole", ["gae"], ["gae/1000"]),
        ("all", ["one/tiny/1", "many/ragged", "whole/opo"], ["one/tiny/16", "many/ragged/8/step1", "whole/opo/1000"]),
    ],
)
def test_rows_are_chosen_by_how_they_begin(measured, plan, suite, chosen, expected):
    assert names(run(suite, chosen, plan)) == expected


def test_what_is_in_the_file_is_not_measured_again(measured, plan, tmp_path):
    out = tmp_path / "rows.json"
    run("many", ["full"], plan, out)
    assert measured == ["full/8"]
    again = run("many", [], plan, out)
    assert measured == ["full/8", "ragged/8"]
    assert names(again) == ["full/8/step1", "full/8/step2", "ragged/8/step1"]
    assert json.loads(out.read_text())["rows"] == again.rows


def test_rows_measured_together_are_all_saved_and_shown_by_name(measured, plan, tmp_path):
    out = tmp_path / "rows.json"
    assert names(run("whole", ["gae"], plan, out)) == ["gae/1000"]
    assert names(run("whole", ["opo"], plan, out)) == ["opo/1000"]
    assert names(run("whole", [], plan, out)) == ["gae/1000", "opo/1000"] and measured == [""]


def test_rows_that_were_finished_stay_when_one_fails(measured, plan, tmp_path, monkeypatch):
    def busy():
        if len(measured) == 1:
            raise BenchError("not idle")

    monkeypatch.setattr(runner, "check_quiet", busy)
    entries = suites.SUITES["one"].entries(plan)
    timed = Suite("", lambda plan: [Entry(e.name, e.measure) for e in entries])
    monkeypatch.setitem(suites.SUITES, "one", timed)
    out, held_values = tmp_path / "rows.json", []
    with pytest.raises(BenchError, match="not idle"):
        suites.run("one", [], plan, out, held_values.append)
    assert names(held_values[0]) == ["tiny/16"] and json.loads(out.read_text())["rows"] == held_values[0].rows
    plan.anyway = True
    assert names(suites.run("one", [], plan, out, held_values.append)) == ["tiny/16", "tiny/256", "smollm2/16"]
    assert measured == ["tiny/16", "tiny/256", "smollm2/16"]


@pytest.mark.parametrize(
    ("suite", "chosen", "message"),
    [
        ("onne", [], "no suite 'onne'; did you mean 'one'"),
        (None, [], "give a suite: one, many, whole, all"),
        ("one", ["tinny/16"], "begins with 'tinny/16'; did you mean 'tiny/16'.*smollm2/16"),
        ("whole", ["gea"], "begins with 'gea'"),
    ],
)
def test_unknown_suites_and_rows(measured, plan, suite, chosen, message):
    with pytest.raises(ConfigError, match=message):
        run(suite, chosen, plan)


def test_rows_say_how_they_were_measured(plan):
    assert plan.with_marks({"others_cores": 0.1}) == {"others_cores": 0.1}
    assert plan.with_marks({"others_cores": 0.3})["busy"] is True
    plan.quick = True
    assert plan.with_marks({"name": "a"}) == {"name": "a", "quick": True}


def test_the_suites_have_what_they_promise(tmp_path):
    plan = Plan(tmp_path, threads=1)
    assert [e.name for e in suites.SUITES["peer"].entries(plan)] == [
        "tiny/16", "tiny/256", "smollm2/16", "smollm2/64", "smollm2/256", "smollm2/g1",
    ]  # fmt: skip
    kinds = {e.name.split("/")[0] for e in suites.SUITES["sample"].entries(plan)}
    assert {"engine", "generate", "prefix_sharing", "compaction", "kept_cache", "batch_rows", "compile"} <= kinds
    assert "vllm" not in kinds, "it takes an interpreter"
    plan.vllm = "python"
    assert "vllm" in {e.name.split("/")[0] for e in suites.SUITES["sample"].entries(plan)}
    assert list(suites.SUITES) == [
        "credit",
        "sample",
        "update",
        "step",
        "peer",
        "limit",
        "models",
        "fidelity",
        "agreement",
    ]


def test_versions_of_this_environment():
    actual = suites.installed_versions(None, ("torch", "no-such-distribution"))
    assert actual == {"torch": metadata.version("torch"), "no-such-distribution": None}
    assert suites.installed_versions(sys.executable, ("torch",)) == {"torch": metadata.version("torch")}


def test_what_is_needed_names_the_extra_and_the_interpreter():
    assert suites.need_installed(None, "torch", "train") == {"python": sys.executable}
    with pytest.raises(MissingExtra, match=r"no-such-distribution is not installed for .*gxpo\[some\].*--python"):
        suites.need_installed(None, "no-such-distribution", "some")


def test_what_is_no_interpreter(tmp_path):
    with pytest.raises(MissingExtra, match="no interpreter that runs"):
        suites.installed_versions(str(tmp_path / "python"), ("torch",))
