"""Starting from another run: its parameters, its settings below the new ones, and no need of it afterwards."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import gxpo
from gxpo.base.errors import CheckpointError, ConfigError, GxpoError
from gxpo.parts.definition import SettingValue
from gxpo.training import checkpoint, config, metrics
from gxpo.training.start import inherit_keys, parameters_of
from gxpo.training.train import free, keys_from_run

SMALL = {
    "tasks.per_step": 2,
    "rollout.group_size": 4,
    "sampling.max_new_tokens": 6,
    "eval.tasks": 2,
    "optim.lr": 0.01,
    "trainer.checkpoint_every": 1,
    "trainer.keep_checkpoints": 9,
}

REWARD = "def digits(completion):\n    return sum(c.isdigit() for c in completion) / 6\n"


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> gxpo.Run:
    folder = tmp_path_factory.mktemp("old")
    (folder / "mine.py").write_text(REWARD)
    reward = f"{folder / 'mine.py'}:digits"
    return gxpo.train("tiny:cold", "arithmetic", "dr_grpo", 2, reward, out=folder / "run", set=SMALL)


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_a_new_run_stands_where_the_old_one_stopped(old: gxpo.Run) -> None:
    new = gxpo.train(from_run=old.path, steps=1, set={"optim.lr": 1e-3})
    assert new.path == old.path.with_name("run-2")
    assert equal(parameters_of(new.path, 0), parameters_of(old.path)) and not equal(
        parameters_of(old.path), parameters_of(old.path, 0)
    )
    assert [row["step"] for row in new.metrics] == [1] and new.metrics[0]["lr"] == 1e-3
    tensors, state = checkpoint.load(new.path / "checkpoints" / "step-000000")
    assert state["learner"] == {"steps": 0} and all(name.startswith("parameter/") for name in tensors)
    keys = config.read(new.path / "config.yaml")
    assert keys["init_from"].value == str(old.path / "checkpoints" / "step-000002")
    resolved = new.trainer.resolved.keys
    line = (old.path / "config.yaml").read_text().splitlines().index("model: tiny:cold # argument") + 1
    assert resolved["model"].origin == f"{old.path}/config.yaml:{line}"
    assert resolved["optim.lr"] == SettingValue(1e-3, "argument") and resolved["credit.scale"].value == "none"
    assert resolved["credit.scale"].origin.endswith("(dr_grpo)")
    assert old.trainer.step_number == 2 and len(old.metrics) == 2


@pytest.mark.slow
def test_an_older_checkpoint_and_no_need_of_it_later(old: gxpo.Run, tmp_path: Path) -> None:
    copied = tmp_path / "old"
    shutil.copytree(old.path, copied)
    at = copied / "checkpoints" / "step-000001"
    options: dict[str, Any] = {"from_run": at, "out": tmp_path / "new", "set": {"trainer.steps": 3}}
    run = gxpo.train(**options)
    assert equal(parameters_of(run.path, 0), parameters_of(old.path, 1))
    shutil.move(run.path, tmp_path / "whole")
    stopped = gxpo.train(**options, watch=lambda row: row["step"] == 1)
    shutil.rmtree(copied)
    again = gxpo.resume(stopped.path)
    expected = [metrics.comparable(row) for row in metrics.read(tmp_path / "whole" / "metrics.jsonl")]
    assert [metrics.comparable(row) for row in again.metrics] == expected and len(expected) == 3


@pytest.mark.slow
def test_lora_goes_on_with_its_adapters(tmp_path: Path) -> None:
    lora = {**SMALL, "learner.lora_rank": 2}
    first = gxpo.train("tiny:cold", "arithmetic", "grpo", 1, out=tmp_path / "a", set=lora)
    second = gxpo.train(from_run=first.path, out=tmp_path / "b")
    assert equal(parameters_of(second.path, 0), parameters_of(first.path))
    for rank, message in ((4, "lora_A.default.weight' has shape"), (0, "lacks 'lm_head.weight'")):
        with pytest.raises(CheckpointError, match=message) as raised:
            gxpo.train(from_run=first.path, out=tmp_path / "c", set={"learner.lora_rank": rank})
        assert "\n" not in str(raised.value) and "does not fit" in str(raised.value)
    assert not (tmp_path / "c").exists()


# ---------------------------------------------------------------- settings
def test_a_changed_method_leaves_what_nobody_stated_behind(old: gxpo.Run) -> None:
    same = config.resolve(inherit_keys(old.path, {}))
    assert same.method.name == "dr_grpo" and same.keys["objective.aggregate"].value == "sequence_sum"
    keys = inherit_keys(old.path, {"method": SettingValue("gspo", "--set")})
    assert "objective.aggregate" not in keys and "trainer.tensorboard" not in keys and "out" not in keys
    assert keys["optim.lr"].value == 0.01 and "(" not in keys["optim.lr"].origin
    assert config.resolve(keys).method.name == "gspo"
    other = config.resolve(inherit_keys(old.path, {"credit": SettingValue("set_relative", "--set")}))
    assert "credit.scale" not in other.keys and other.method.name == "dr_grpo"
    composed = inherit_keys(old.path, {}, is_composed=True)
    assert not any(k.startswith(("credit", "objective", "method")) for k in composed) and "optim.lr" in composed
    assert config.resolve(composed, composition=gxpo.method("rloo")).method.name == "rloo"


@pytest.mark.parametrize(
    ("stated", "changed"),
    [
        ({"method": "gigpo", "credit.add.state.discount": 0.9}, {"method": "grpo"}),  # only gigpo's credit has one
        ({"method": "repo_replay", "rollout.replays": 3}, {"method": "dapo"}),
        ({"method": "gigpo", "credit.add.state.discount": 0.9}, {"credit": "set_relative"}),  # another part
    ],
)
def test_inherited_key_that_the_new_method_lacks_is_left_out(
    stated: dict[str, Any], changed: dict[str, Any], tmp_path: Path
) -> None:
    first = config.resolve({k: SettingValue(v, "--set") for k, v in stated.items()})
    (tmp_path / "config.yaml").write_text(first.to_yaml())
    key = list(stated)[-1]
    line = next(i for i, x in enumerate(first.to_yaml().splitlines(), 1) if x.startswith(f"{key}:"))
    keys = inherit_keys(tmp_path, {k: SettingValue(v, "argument") for k, v in changed.items()})
    with pytest.warns(UserWarning, match=rf"config\.yaml:{line}: {key}={stated[key]} is left out: \w+ has no such key"):
        resolved = config.resolve(keys)
    assert key not in resolved.keys
    again = config.read(tmp_path / "config.yaml")[key]
    with pytest.raises(ConfigError, match=r"unknown (key|credit)"):  # one that is typed now is still refused
        config.resolve({**keys, key: SettingValue(again.value, "--set")})


def test_origins_survive_a_second_inheritance(old: gxpo.Run, tmp_path: Path) -> None:
    second = tmp_path / "second"
    second.mkdir()
    (second / "config.yaml").write_text(config.resolve(inherit_keys(old.path, {})).to_yaml())
    keys = inherit_keys(second, {"method": SettingValue("rloo", "--set")})
    assert "credit.scale" not in keys and "trainer.tensorboard" not in keys and keys["optim.lr"].value == 0.01
    kept_inherited = inherit_keys(second, {})
    assert kept_inherited["credit.scale"].origin.endswith("(dr_grpo)") and kept_inherited[
        "credit.scale"
    ].origin.startswith(str(second))


def test_a_file_wins_over_the_run(old: gxpo.Run, tmp_path: Path) -> None:
    path = tmp_path / "new.yaml"
    path.write_text("trainer: {steps: 7}\n")
    keys = keys_from_run(old.path, config.read(path) | config.parse_set(["seed=3"]))
    resolved = config.resolve(keys)
    assert (resolved.settings.trainer.steps, resolved.settings.seed, resolved.settings.tasks.per_step) == (7, 3, 2)
    assert resolved.keys["trainer.steps"].origin == f"{path}:1"


def test_what_is_no_run_is_refused(old: gxpo.Run, tmp_path: Path) -> None:
    for path, message in ((tmp_path, "not a run directory"), (old.path / "checkpoints" / "step-000009", "manifest")):
        with pytest.raises(CheckpointError, match=message):
            gxpo.train(from_run=path)
    with pytest.raises(ConfigError, match="from_run"):
        gxpo.train(from_run=old.path, resolved=old.trainer.resolved)
    with pytest.raises(GxpoError, match="holds a run"):
        gxpo.train(from_run=old.path, out=old.path)


def test_a_reward_of_python_is_asked_for_again(old: gxpo.Run, tmp_path: Path) -> None:
    keys = config.read(old.path / "config.yaml") | {"reward": SettingValue("python:mine", "argument")}
    (tmp_path / "config.yaml").write_text(config.resolve(keys).to_yaml())
    shutil.copytree(old.path / "checkpoints", tmp_path / "checkpoints")
    with pytest.raises(ConfigError, match=r"was a Python object \(python:mine\): give it again"):
        keys_from_run(tmp_path, {})
    assert keys_from_run(tmp_path, {"reward": SettingValue("correct", "--set")})["reward"].value == "correct"


def test_free(tmp_path: Path) -> None:
    assert free(tmp_path / "x") == tmp_path / "x"
    for name in ("x", "x-2"):
        (tmp_path / name).mkdir()
    assert free(tmp_path / "x") == tmp_path / "x-3"
