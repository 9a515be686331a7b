"""Names of run directories, finding one, and what a run does not do to files that are not its own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import gxpo
from gxpo.base.errors import CheckpointError, ConfigError
from gxpo.parts.definition import SettingValue
from gxpo.training.directory import find, name_for

SMALL = {"tasks.per_step": 2, "rollout.group_size": 2, "eval.tasks": 2, "sampling.max_new_tokens": 2}


@pytest.mark.parametrize(
    ("sets", "there", "name"),
    [
        ({}, [], "lake"),
        ({"optim.lr": 0.1}, [], "lake"),
        ({"seed": 3, "method": "dr_grpo+gspo"}, [], "lake-dr_grpo+gspo-seed3"),
        ({}, ["lake"], "lake-2"),
        ({}, ["lake", "lake-2"], "lake-3"),
        ({"method": "rloo"}, ["lake"], "lake-rloo"),
        ({"method": "a/b"}, [], "lake-a-b"),
    ],
)
def test_new_run_is_named_after_its_file_and_never_reuses_a_name(tmp_path, monkeypatch, sets, there, name):
    monkeypatch.chdir(tmp_path)
    for other in there:
        (tmp_path / "runs" / other).mkdir(parents=True)
    values = {k: SettingValue(v, "--set") for k, v in sets.items()}
    assert name_for(Path("examples/lake.yaml"), values) == Path("runs") / name


@pytest.mark.parametrize(
    ("there", "found"),
    [
        (["lake", "lake-2", "lake-rloo"], "lake"),
        (["lake-rloo", "other"], "lake-rloo"),
        (["lake-2", "lake-rloo"], r"lake is ambiguous: it may be .*lake-2, .*lake-rloo"),
        (["pond"], r"no run .*lake; there is .*pond"),
        ([], "holds no run"),
    ],
)
def test_the_beginning_of_a_name_finds_the_only_run_that_has_it(tmp_path, there, found):
    for name in there:
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").touch()
    (tmp_path / "lake-notes").mkdir()  # is no run
    if found in there:
        assert find(tmp_path / "lake") == tmp_path / found
    else:
        with pytest.raises(CheckpointError, match=found):
            find(tmp_path / "lake")


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    gxpo.train("tiny:cold", "arithmetic", steps=1, out=path, set=SMALL)
    return path


@pytest.mark.parametrize("name", ["rollouts", "evaluations", "checkpoints", "metrics.jsonl"])
def test_resume_deletes_and_writes_nothing_behind_a_link(finished, tmp_path, name):
    """The directory that `name` leads to has a file that a run would cut off, and a leftover that it would remove."""
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    shutil.copytree(finished, run)
    shutil.move(run / name, elsewhere)
    (run / name).symlink_to(elsewhere)
    if elsewhere.is_dir():
        (elsewhere / ".partial-step-000009").mkdir()
        (elsewhere / "step-000009.jsonl").write_text("somebody's")
    before = {p: p.read_bytes() if p.is_file() else None for p in [elsewhere, *elsewhere.rglob("*")]}
    with pytest.raises(ConfigError, match=f"{name} is a symbolic link"):
        gxpo.resume(run, steps=2)
    assert {p: p.read_bytes() if p.is_file() else None for p in [elsewhere, *elsewhere.rglob("*")]} == before


def test_a_run_directory_may_be_a_link_as_a_whole(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "disk")
    (tmp_path / "run").symlink_to(tmp_path / "disk")
    assert gxpo.resume(tmp_path / "run", steps=2).trainer.step_number == 2
    assert len((tmp_path / "disk" / "metrics.jsonl").read_text().splitlines()) == 2


def test_a_name_of_ones_own_among_the_rollouts_is_left_alone(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    mine = tmp_path / "run" / "rollouts" / "step-by-step.txt"
    mine.write_text("notes")
    gxpo.resume(tmp_path / "run")
    assert mine.read_text() == "notes"
