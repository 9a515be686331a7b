"""Lists of experiments as runs: keys, order, what is shared and what is left out."""

import gzip
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIST = """
settings:
  a: {keys: {model: tiny, tasks: {per_step: 4}, optim.lr: 0.1}, budget: {tokens: 100}}
  b: {keys: {model: tiny}, budget: {updates: 5}}
experiments:
  - id: one
    setting: a
    seeds: 2
    base: {label: grpo, keys: {method: grpo}}
    arms: [{label: x, keys: {method: rloo, tasks.per_step: 8}}]
    varied: {setting: b, seeds: 1, arms: [{label: y, keys: {method: opo}}]}
    seconds_per_run: 3
  - id: two
    setting: a
    seeds: 3
    base: {label: grpo, keys: {method: grpo}}
    arms: []
"""


@pytest.fixture
def study(script):
    return script("study")


@pytest.fixture
def listed(study, tmp_path):
    path = tmp_path / "list.yaml"
    path.write_text(LIST)
    return study.read_list(path)


def test_arm_overrides_setting_and_both_override_study_defaults(study, listed):
    keys = study.keys_of(listed["settings"]["a"], listed["experiments"][0]["arms"][0])
    assert (keys["method"], keys["tasks.per_step"], keys["optim.lr"], keys["trainer.max_tokens"]) == (
        "rloo",
        8,
        0.1,
        100,
    )
    assert (keys["doctor.every"], keys["eval.points"]) == (0, 4)
    assert "trainer.max_updates" not in keys


def test_runs_come_seed_by_seed_and_equal_ones_once(study, listed):
    todo = study.missing(study.list_runs([listed]), {})
    actual = [(keys["method"], keys.get("tasks.per_step"), keys["seed"]) for keys, _ in todo]
    assert actual == [
        ("grpo", 4, 0),
        ("rloo", 8, 0),
        ("grpo", None, 0),
        ("opo", None, 0),
        ("grpo", 4, 1),
        ("rloo", 8, 1),
        ("grpo", 4, 2),
    ]


def test_experiments_are_chosen_by_id(study, listed):
    assert {k["method"] for k, _ in study.list_runs([listed], only=["two"])} == {"grpo"}
    assert len(study.list_runs([listed], skip=["one"])) == 3
    assert len(study.list_runs([listed], only=["two"], seeds=7)) == 7


@pytest.mark.slow
def test_every_list_of_the_project_names_settings_that_it_has(study):
    for path in sorted((ROOT / "studies").glob("*.yaml")):
        listed = study.read_list(path)
        assert study.list_runs([listed]), path
        ids = [e["id"] for e in listed["experiments"]]
        assert len(ids) == len(set(ids)), path


def test_rows_of_the_store_can_be_read_and_are_there_once(study):
    archive = study.STORE.with_name("runs.jsonl.gz")
    lines = gzip.decompress(archive.read_bytes()).decode().splitlines()
    assert len(lines) > 1000
    assert len(study.read_store(study.STORE)) == len(lines)


def test_recorded_rollouts_stay_until_the_doctor_has_read_them(study, listed, tmp_path, monkeypatch):
    jobs = []

    class Runner:
        def __init__(self, workers):
            pass

        def __call__(self, new_jobs):
            jobs.extend(new_jobs)
            return iter(())

        def close(self):
            pass

    monkeypatch.setattr(study, "Local", Runner)
    listed["settings"]["b"]["keys"]["trainer.rollouts_every"] = 5
    study.run([listed], hours=0, workers=1, folder=tmp_path / "runs", store=tmp_path / "store.jsonl", only=["one"])
    assert {(job.keys["method"], job.keys["trainer.rollouts_every"]): job.keep for job in jobs} == {
        ("grpo", 0): False,
        ("rloo", 0): False,
        ("grpo", 5): True,
        ("opo", 5): True,
    }
