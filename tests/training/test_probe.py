"""The probe: real steps, an update even where nothing is learned, arithmetic by hand, nothing left behind."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from gxpo.learning.lora import LoraSettings
from gxpo.learning.torch import TorchLearner
from gxpo.parts.definition import SettingValue
from gxpo.training import checkpoint, config, probe
from gxpo.training.models import tiny_model

SMALL = {
    "model": "tiny:cold",
    "tasks.per_step": 2,
    "rollout.group_size": 3,
    "sampling.max_new_tokens": 5,
    "eval.tasks": 12,
    "eval.samples": 2,
    "eval.every": 3,
    "trainer.steps": 10,
    "trainer.checkpoint_every": 4,
}


def resolved(**more: Any) -> config.RunConfig:
    return config.resolve({k: SettingValue(v, "--set") for k, v in {**SMALL, **more}.items()})


def test_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch, local_path = tmp_path / "scratch", tmp_path / "here"
    scratch.mkdir(), local_path.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    monkeypatch.chdir(local_path)
    messages: list[str] = []
    m = probe.probe(resolved(), notify=messages.append)
    assert list(scratch.glob("gxpo*")) == [] and list(local_path.iterdir()) == []  # torch may make a cache of its own
    assert m["tokens_per_microbatch"] == 8192
    assert any("two steps" in line for line in messages)
    # an untrained model earns nothing, so the update is the forced one: all of 2 x 3 rollouts through the model
    assert m["update_forced"] and m["optimiser_steps_per_step"] == 1 and m["unique_token_ratio"] > 1
    assert 0 < m["generated_tokens_per_step"] <= m["generated_tokens_per_step_at_most"] == 2 * 3 * 5
    assert m["rollouts_per_step"] == 6 and m["discarded_rollouts_per_step"] == 0
    # evaluations before step 1, after 3, 6, 9 and 10; checkpoints before step 1, after 4, 8 and 10
    assert (m["evaluations"], m["checkpoints"]) == (5, 4)
    parameters = sum(p.numel() for p in tiny_model().parameters())
    assert m["checkpoint_mb"] == pytest.approx(3 * 4 * parameters / 2**20)
    assert m["disk_checkpoints_mb"] == pytest.approx(3 * m["checkpoint_mb"])  # two are kept, one is being written
    assert m["time_steps_s"] == pytest.approx(10 * m["time_step_s"])
    each = (m["time_sample_s"] + m["time_score_s"]) / 6  # of a completion
    assert m["time_evaluations_s"] == pytest.approx(5 * 12 * 2 * each)
    parts = ("steps", "evaluations", "checkpoints")
    assert m["time_run_s"] == pytest.approx(sum(m[f"time_{part}_s"] for part in parts))
    assert m["memory_peak_mb"] >= m["memory_after_loading_mb"] > 0
    assert m["memory_above_loading_mb"] == pytest.approx(m["memory_peak_mb"] - m["memory_after_loading_mb"])


@pytest.mark.parametrize(
    ("steps", "every", "count"), [(1, 0, 2), (1, 1, 2), (4, 2, 3), (5, 2, 4), (5, 5, 2), (6, 5, 3), (3, 0, 2)]
)
def test_occasions(steps: int, every: int, count: int) -> None:
    assert probe.n_times(steps, every) == count
    by_hand = {0, steps} | {s for s in range(1, steps + 1) if every and s % every == 0}
    assert count == len(by_hand)


@pytest.mark.parametrize("lora", [None, LoraSettings(rank=2)])
def test_size_of_a_checkpoint(tmp_path: Path, lora: LoraSettings | None) -> None:
    learner = TorchLearner(tiny_model(), lr=1e-3, lora=lora, dtype="bfloat16")
    for p in learner.optimiser.parameter_by_name.values():
        p.grad = torch.ones_like(p)
    learner.optimiser.collect()
    learner.optimiser.step()
    path = checkpoint.save(tmp_path, 1, learner.tensors(), {}, 1)
    size = (path / "tensors.safetensors").stat().st_size
    assert 0 <= size - probe.checkpoint_bytes(learner) < 50_000  # the header of names


@pytest.mark.parametrize(
    ("keys", "steps"),
    [
        ({}, 10),
        ({"trainer.max_tokens": 400}, 4),
        ({"trainer.max_tokens": 401}, 5),
        ({"trainer.max_updates": 6}, 3),
        ({"trainer.max_seconds": 1.0, "trainer.max_tokens": 10**6}, 2),
        ({"trainer.max_tokens": 10**6}, 10),
    ],
)
def test_a_budget_says_how_many_steps(keys: dict[str, float], steps: int) -> None:
    settings = resolved(**{"trainer.steps": 10, **keys}).settings
    assert probe.steps_until_end(settings, tokens=100, updates=2, seconds=0.5) == steps
