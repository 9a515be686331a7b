"""Runs with `cluster.backend: fsdp`: the figures of one process, resumed by other numbers of processes, exported."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests import started

import gxpo
from gxpo.base.errors import CheckpointError, ConfigError
from gxpo.training import checkpoint, config
from gxpo.training.export import export
from gxpo.training.preflight import check_settings
from gxpo.training.start import parameters_of

KEYS = {
    "model": "tiny",
    "task": "arithmetic",
    "method": "dr_grpo",
    "tasks.per_step": 4,
    "rollout.group_size": 4,
    "sampling.max_new_tokens": 16,
    "optim.lr": 3e-4,
    "learner.tokens_per_microbatch": 300,
    "trainer.steps": 4,
    "trainer.checkpoint_every": 2,
    "eval.every": 0,
    "eval.tasks": 20,
}
CLOSE = ("reward_mean", "loss", "grad_norm", "eval_accuracy", "generated_tokens", "tokens_forward")


def gxpo_in(world: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`gxpo ARGUMENTS` in so many processes, as torchrun starts them; what the first one says."""
    command = ["-m", "gxpo", *arguments]
    return started.ranks(world, command) if world > 1 else started.run(command)


def train(world: int, out: Path, **keys: Any) -> str:
    sets = [f"{k}={json.dumps(v)}" for k, v in {**KEYS, **keys}.items()]
    done = gxpo_in(world, "train", *(x for s in sets for x in ("--set", s)), "--out", str(out))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def rows(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def same(one: list[dict[str, Any]], other: list[dict[str, Any]], *, rel: float = 1e-5) -> None:
    assert [row["step"] for row in one] == [row["step"] for row in other]
    for a, b in zip(one, other, strict=True):
        for name in CLOSE:
            assert a.get(name) == (b.get(name) if b.get(name) is None else pytest.approx(b[name], rel=rel)), name


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """A local run, and the same with its parameters in shards of two processes."""
    folder = tmp_path_factory.mktemp("runs")
    gxpo.train(set=KEYS, out=folder / "local", progress="none")
    text = train(2, folder / "sharded", **{"cluster.backend": "fsdp"})
    return folder / "local", folder / "sharded", text


@pytest.mark.slow
def test_a_sharded_run_has_the_figures_of_one_process(pair: tuple[Path, Path, str]) -> None:
    local, sharded, message = pair
    same(rows(local), rows(sharded))
    assert message.count("held-out accuracy") == 1  # the first process speaks for all
    assert all(row["weights_fingerprint"] for row in rows(sharded))
    for name, x in parameters_of(local).items():
        assert torch.allclose(parameters_of(sharded)[name], x, rtol=0, atol=2e-5), name


@pytest.mark.slow
def test_its_export_is_the_local_one(pair: tuple[Path, Path, str], tmp_path: Path) -> None:
    for run, name in zip(pair, ("local", "sharded"), strict=False):
        export(run, tmp_path / name)
    actual = [load_file(tmp_path / name / "model.safetensors") for name in ("local", "sharded")]
    assert actual[0].keys() == actual[1].keys()
    assert all(torch.allclose(actual[0][n], actual[1][n], rtol=0, atol=2e-5) for n in actual[0])


@pytest.mark.slow
def test_another_number_of_processes_resumes_it(pair: tuple[Path, Path, str], tmp_path: Path) -> None:
    """One process goes on behind step 2 of two, which then differs from them by rounding."""
    import shutil

    run = tmp_path / "run"
    shutil.copytree(pair[1], run)
    shutil.rmtree(run / "checkpoints" / "step-000004")
    done = gxpo_in(1, "resume", str(run))
    assert done.returncode == 0, done.stderr[-3000:]
    same(rows(run), rows(pair[1]))
    assert rows(run)[1] == rows(pair[1])[1]
    assert rows(run)[2]["weights_fingerprint"] == rows(pair[1])[2]["weights_fingerprint"]  # a step without signal


@pytest.mark.thorough
def test_three_processes_resume_it_and_adapters_are_sharded_too(tmp_path: Path) -> None:
    keys = {"learner.lora_rank": 4, "method": "gspo", "trainer.steps": 6}
    local, sharded = tmp_path / "local", tmp_path / "sharded"
    gxpo.train(set={**KEYS, **keys}, out=local, progress="none")
    train(2, sharded, **{**keys, "cluster.backend": "fsdp", "trainer.steps": 3})
    done = gxpo_in(3, "resume", str(sharded), "--steps", "6")
    assert done.returncode == 0, done.stderr[-3000:]
    assert [r["step"] for r in rows(sharded)] == [1, 2, 3, 4, 5, 6]
    shared = [{k: v for k, v in row.items() if k != "eval_accuracy"} for row in rows(local)]
    same(shared, [{k: v for k, v in row.items() if k != "eval_accuracy"} for row in rows(sharded)])


def test_a_damaged_shard_is_noticed(pair: tuple[Path, Path, str], tmp_path: Path) -> None:
    import shutil

    run = tmp_path / "run"
    shutil.copytree(pair[1], run)
    newest = run / "checkpoints" / "step-000004"
    shard = sorted((newest / "engine").iterdir())[1]
    data = bytearray(shard.read_bytes())
    data[-5] ^= 1
    shard.write_bytes(data)
    with pytest.raises(CheckpointError, match=f"the checksum of .*{shard.name} differs"):
        checkpoint.verify(newest)
    with pytest.warns(UserWarning, match="using the older step-000002"):
        assert checkpoint.latest(run).name == "step-000002"


@pytest.mark.slow
def test_a_checkpoint_is_not_resumed_by_another_backend(pair: tuple[Path, Path, str], tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"written with another cluster\.backend"):
        local = gxpo.train(set={**KEYS, "trainer.steps": 1}, out=tmp_path / "x", progress="none")
        assert local.trainer is not None
        local.trainer.load(pair[1] / "checkpoints" / "step-000004")


def test_a_run_starts_from_shards(pair: tuple[Path, Path, str], tmp_path: Path) -> None:
    keys = {**KEYS, "init_from": str(pair[1]), "trainer.steps": 1, "optim.lr": 1e-9}
    run = gxpo.train(set=keys, out=tmp_path / "x", progress="none")
    first = run.evaluations[0]["eval_accuracy"]
    assert first == json.loads((pair[1] / "evaluations.jsonl").read_text().splitlines()[-1])["eval_accuracy"]


@pytest.mark.parametrize(
    ("keys", "what"),
    [
        ({"model": "flow", "method": "flow_grpo", "task": "points"}, "model flow"),
        ({"learner.states": "bfloat16", "learner.dtype": "bfloat16"}, "learner.states=bfloat16"),
        ({"learner.tokens_per_microbatch": "auto"}, "give a number"),
        ({"method": "trpo"}, "update natural_gradient"),
        ({"method": "oprl"}, "a second model"),
    ],
)
def test_what_shards_can_not_do_is_refused(keys: dict[str, Any], what: str) -> None:
    settings = {k: v for k, v in KEYS.items() if not k.startswith("learner.")}
    settings |= {**keys, "cluster.backend": "fsdp"}
    resolved = config.resolve({k: config.SettingValue(v, "test") for k, v in settings.items()})
    with pytest.raises(ConfigError, match=what):
        check_settings(resolved.settings, resolved.method)
