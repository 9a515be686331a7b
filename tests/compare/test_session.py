"""One call of the command: which arguments go together, and what a suite brings along."""

import pytest

from gxpo.base.errors import ConfigError
from gxpo.compare.session import Session, is_run, suites_as_data, suites_as_text

OPTIONS = {"out": None, "study": None, "budget": None, "model": None, "sets": [], "measure": None, "better": None}


def session(arguments, task=None, suite=None):
    return Session(arguments, task, suite, OPTIONS, commands=[], notify=lambda line: None)


def test_a_folder_named_as_a_method_is_a_run_with_a_slash(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("dapo", "mine"):
        (tmp_path / name).mkdir()
    (tmp_path / "keys.yaml").write_text("method: rloo")
    actual = {a: is_run(a) for a in ("dapo", "./dapo", "mine", "a=mine", "keys.yaml", "rloo", "x=rloo:optim.lr=1")}
    assert [a for a, run in actual.items() if run] == ["./dapo", "mine", "a=mine"]


@pytest.mark.parametrize(
    ("arguments", "task", "message"),
    [
        (["./old", "rloo"], None, "./old is a run and rloo is not: compare runs, or methods"),
        (["./old"], "sums", "existing runs have their own task"),
        ([], "sums", "which methods"),
    ],
)
def test_arguments_that_do_not_go_together(tmp_path, monkeypatch, arguments, task, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old").mkdir()
    with pytest.raises(ConfigError, match=message):
        session(arguments, task)


def test_a_suite_brings_its_settings_and_arms():
    full_session, chosen = session([], suite="stalled"), session(["rloo"], suite="stalled")
    (listed,) = [s for s in suites_as_data() if s["suite"] == "stalled"]
    assert [s.name for s in full_session.settings] == [s["task"] for s in listed["settings"]]
    assert full_session.arms == listed["arms"] and chosen.arms == ["rloo"]
    assert str(full_session.out) == "runs/compare-stalled" and full_session.study == "stalled"
    assert "stalled: " in suites_as_text()
