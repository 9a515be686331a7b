"""A resumed run goes on with the data and the code that it began with, and runs nothing before it knows that."""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import gxpo
from gxpo.base.errors import CheckpointError
from gxpo.cli.app import app
from gxpo.environments.tasks.dataset import Dataset
from gxpo.parts.definition import SettingValue
from gxpo.training import checkpoint, config, inputs

SMALL = {"tasks.per_step": 2, "rollout.group_size": 2, "eval.tasks": 1, "sampling.max_new_tokens": 2}
TASKS = "".join(f'{{"prompt": "{i}+1=", "answer": "{i + 1}"}}\n' for i in range(20))
REWARD = "def digits(completion): return float(any(c.isdigit() for c in completion))\n"
CREDIT = "def own(forest, signals, step): return forest.to_path(forest.outcome, 'R')\n"


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.fixture(scope="module")
def stopped(tmp_path_factory) -> Path:
    """A run of data and code in files, which the folder of the run holds too."""
    home = tmp_path_factory.mktemp("stopped")
    for name, text in (("data.jsonl", TASKS), ("reward.py", REWARD), ("credit.py", CREDIT)):
        (home / name).write_text(text)
    method = {"credit": f"{home}/credit.py:own"}
    gxpo.train(
        "tiny:cold", f"{home}/data.jsonl", "grpo", 1, f"{home}/reward.py:digits", out=home / "run", set=SMALL | method
    )
    return home


def test_every_file_that_a_value_names_is_hashed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GXPO_METHODS", "mine.py:other.py")
    for name in ("data.jsonl", "held.jsonl", "r.py", "s.py", "c.py", "chat.jinja", "mine.py", "other.py", "grpo"):
        Path(name).write_text(name)
    Path("python3.11").touch()
    monkeypatch.setitem(sys.modules, "my_package.credit", type(sys)("my_package.credit"))
    sys.modules["my_package.credit"].__file__ = str(tmp_path / "s.py")
    values = {
        "method": "mine+grpo", "task": "data.jsonl", "tasks.options": {"held_out": "held.jsonl", "n": 3},
        "reward": {"r.py:f": 1.0, "correct": 0.5}, "credit": "./c.py:f", "credit.add.more": "my_package.credit:f",
        "chat.template": "chat.jinja", "chat.system": "grpo.\n" * 2000, "sampling.stop": ["\0", "no.txt"],
        "sampling.engine_python": "python3.11", "model": "data.jsonl", "objective.surrogate": "gymnasium:X",
    }  # fmt: skip
    actual = inputs.hashes({k: SettingValue(v, "file") for k, v in values.items()})
    file_names = {"data.jsonl", "held.jsonl", "r.py", "./c.py", "chat.jinja", "mine.py", str(tmp_path / "s.py")}
    assert actual == {name: sha(Path(name).name) for name in file_names}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["data.jsonl", "reward.py", "credit.py"])
def test_a_changed_file_is_an_error_unless_it_is_allowed(stopped, tmp_path, name):
    shutil.copytree(stopped / "run", tmp_path / "run")
    file = stopped / name
    text = file.read_text()
    try:
        file.write_text(text + "\n")
        with pytest.raises(CheckpointError, match=rf"changed since .*run: {file}; restore, or .*--allow-changed-data"):
            gxpo.resume(tmp_path / "run", steps=2)
        failed = CliRunner().invoke(app, ["resume", str(tmp_path / "run"), "--steps", "2"])
        assert isinstance(failed.exception, CheckpointError)
        assert len(checkpoint.newest_state(tmp_path / "run")["inputs"]) == 3
        done = CliRunner().invoke(app, ["resume", str(tmp_path / "run"), "--steps", "2", "--allow-changed-data"])
        assert done.exit_code == 0, done.output
        assert gxpo.resume(tmp_path / "run", steps=3).trainer.step_number == 3  # the new file is what it now goes by
        file.unlink()
        with pytest.raises(CheckpointError, match=rf"{file} \(missing\)"):
            gxpo.resume(tmp_path / "run")
    finally:
        file.write_text(text)


def test_checkpoint_of_an_earlier_version_resumes_without_hashes(stopped, tmp_path):
    shutil.copytree(stopped / "run", tmp_path / "run")
    tensors, state = checkpoint.load(checkpoint.latest(tmp_path / "run"))
    del state["inputs"]
    checkpoint.save(tmp_path / "run", 1, tensors, {**state, "config": state["config"][0]}, keep=2)
    assert gxpo.resume(tmp_path / "run", steps=2).trainer.step_number == 2


def test_rows_of_a_data_set_are_hashed_whatever_they_lie_in(monkeypatch):
    rows = [{"prompt": f"{i}?", "answer": i} for i in range(20)]
    loaded = type(sys)("datasets")
    loaded.load_dataset = lambda path, name=None, *, split: type(
        "Rows", (list,), {"column_names": ["prompt", "answer"]}
    )(rows)
    monkeypatch.setitem(sys.modules, "datasets", loaded)
    first = inputs.hashes({}, Dataset("org/sums"))
    assert list(first) == ["dataset:org/sums"] and inputs.hashes({}, Dataset("org/sums")) == first
    rows[3]["answer"] = 4
    assert inputs.hashes({}, Dataset("org/sums")) != first


# What each key names leaves a mark where it runs.
MARKED = {
    "reward": "import pathlib; pathlib.Path({mark!r}).touch()\ndef f(completion): return 1.0\n",
    "credit": "import pathlib; pathlib.Path({mark!r}).touch()\ndef f(forest, signals, step): return None\n",
    "task": "import pathlib; pathlib.Path({mark!r}).touch()\nclass f: pass\n",
}


@pytest.mark.parametrize("command", ["resume", "eval", "export"])
@pytest.mark.parametrize("key", [*MARKED, "sampling.engine_python"])
def test_code_named_by_a_changed_config_does_not_run(stopped, tmp_path, key, command):
    mark, run = tmp_path / "ran", tmp_path / "run"
    shutil.copytree(stopped / "run", run)
    file = tmp_path / "theirs.py"
    value = f"{file}:f"
    if key == "sampling.engine_python":
        value = str(file)
        file.write_text(f"#!/bin/sh\ntouch {mark}\n")
        file.chmod(0o755)
    else:
        file.write_text(MARKED[key].format(mark=str(mark)))
    keys = {**config.read(run / "config.yaml"), key: SettingValue(value, "theirs")}
    if key == "sampling.engine_python":
        keys["sampling.engine"] = SettingValue("vllm", "theirs")
    text = "".join(f"{k}: {config.show(s.value)}\n" for k, s in keys.items() if not k.startswith("versions"))
    (run / "config.yaml").write_text(text)
    arguments = [command, str(run), *([str(tmp_path / "model")] if command == "export" else [])]
    failed = CliRunner().invoke(app, arguments)
    assert "not the configuration of its checkpoint" in str(failed.exception)
    assert not mark.exists()


@pytest.mark.parametrize(
    "slot", ["credit", "objective.surrogate", "objective.ratio", "signal.mine", "rollout", "weight.mine"]
)
@pytest.mark.parametrize("command", [("train", "--dry-run"), ("plan", "--no-probe")])
def test_a_dry_run_runs_no_file(tmp_path, slot, command):
    file, mark = tmp_path / "mine.py", tmp_path / "ran"
    file.write_text(f"import pathlib; pathlib.Path({str(mark)!r}).touch()\nclass Part: pass\n")
    (tmp_path / "run.yaml").write_text(f"{slot}: {file}:Part\n{slot}.width: 3\n")
    output = CliRunner().invoke(app, [command[0], str(tmp_path / "run.yaml"), command[1], "--json"])
    assert output.exit_code == 0 and f'"{file}:Part"' in output.output and f'"{slot}.width"' in output.output
    assert not mark.exists()
    (tmp_path / "run.yaml").write_text(f"{slot}: {file}:Prat\n")
    failed = CliRunner().invoke(app, [command[0], str(tmp_path / "run.yaml"), command[1]])
    assert "has no 'Prat'; did you mean 'Part'" in str(failed.exception) and not mark.exists()


def test_dry_run_of_a_team_file_shows_settings_and_runs_nothing(tmp_path):
    file, mark = tmp_path / "team.py", tmp_path / "ran"
    file.write_text(f"import pathlib; pathlib.Path({str(mark)!r}).touch()\nteam = 1\n")
    (tmp_path / "run.yaml").write_text(f"method: dr_mas\nrollout.group_size: 6\nrollout.graph: {file}:team\n")
    output = CliRunner().invoke(app, ["train", str(tmp_path / "run.yaml"), "--dry-run", "--json"])
    assert output.exit_code == 0 and '"group_size": 6' in output.output and not mark.exists()
