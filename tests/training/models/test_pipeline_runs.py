"""Runs on pipelines of diffusers: a reward that sees, adapters, what comes out, and the way back to diffusers."""

import json

import diffusers
import pytest
import torch
from tests.thorough import SLOW
from tests.training.models.test_pipelines import small_dit

import gxpo
from gxpo.base.errors import ConfigError
from gxpo.training.export import export
from gxpo.training.models import pipelines

REWARD = "def light(picture):\n    return sum(picture.convert('L').getdata()) / 255 / 64\n"


@pytest.fixture
def pipeline(tmp_path):
    folder = tmp_path / "pipeline"
    pipelines.small_network().save_pretrained(folder / "unet", safe_serialization=True)
    diffusers.DDIMScheduler(clip_sample=False).save_pretrained(folder / "scheduler")
    return folder


@pytest.mark.parametrize(
    "name",
    ["ddpo", *(pytest.param(n, marks=SLOW) for n in ("dppo", "loop_diffusion", "awm", "dgpo_diffusion", "vgpo"))],
)
def test_a_pipeline_trains_shows_and_comes_back(name, pipeline, tmp_path):
    (tmp_path / "light.py").write_text(REWARD)
    run = tmp_path / "run"
    keys = {
        "tasks.per_step": 2, "rollout.group_size": 3, "sampling.denoising_steps": 3, "eval.tasks": 2,
        "learner.lora_rank": 2, "sampling.temperature": 1.0, "trainer.rollouts_every": 1, "optim.lr": 1e-3,
    }  # fmt: skip
    trained = gxpo.train(
        f"diffusers:{pipeline}", "pictures", name, 2, f"{tmp_path / 'light.py'}:light", out=run, set=keys
    )
    rows = trained.metrics
    assert rows[0]["weights_fingerprint"] != rows[1]["weights_fingerprint"] and rows[-1]["empty_steps"] == 0
    record = json.loads((run / "rollouts" / "step-000002.jsonl").read_text().splitlines()[0])
    assert (run / "rollouts" / "media" / f"{record['info']['picture'].split(':')[1]}").is_file()
    assert "Pictures by prompt, before and after" in (run / "report.html").read_text()
    if name == "ddpo":
        export(run, tmp_path / "out")
        diffusers.UNet2DModel.from_pretrained(tmp_path / "out" / "unet")
        diffusers.DDIMScheduler.from_pretrained(tmp_path / "out" / "scheduler")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "scheduler"),
    [("ddpo", diffusers.DDPMScheduler(clip_sample=False)), ("dance_grpo", diffusers.FlowMatchEulerDiscreteScheduler())],
    ids=["ddpm", "flow"],
)
def test_a_transformer_trains_and_comes_back(name, scheduler, tmp_path):
    (tmp_path / "light.py").write_text(REWARD)
    source, run, target = tmp_path / "pipeline", tmp_path / "run", tmp_path / "out"
    small_dit().save_pretrained(source / "transformer", safe_serialization=True)
    scheduler.save_pretrained(source / "scheduler")
    keys = {
        "tasks.per_step": 2, "rollout.group_size": 3, "sampling.denoising_steps": 3, "eval.tasks": 2,
        "learner.lora_rank": 2, "sampling.temperature": 0.7, "sampling.guidance": 1.5, "optim.lr": 1e-2,
    }  # fmt: skip
    trained = gxpo.train(
        f"diffusers:{source}", "pictures", name, 2, f"{tmp_path / 'light.py'}:light", out=run, set=keys
    )
    rows = trained.metrics
    assert rows[0]["weights_fingerprint"] != rows[1]["weights_fingerprint"] and rows[-1]["empty_steps"] == 0
    assert all(row["sampler_gap"] < 1e-4 and row["grad_norm"] > 0 for row in rows)
    export(run, target)
    before, after = (
        diffusers.DiTTransformer2DModel.from_pretrained(folder / "transformer").state_dict()
        for folder in (source, target)
    )
    changed = {name for name, x in before.items() if not torch.equal(x, after[name])}
    assert changed and all(name.endswith("weight") and "proj_out" not in name for name in changed)


def test_a_flow_of_gxpos_own_has_no_guidance(tmp_path):
    with pytest.raises(ConfigError, match=r"model flow can't have sampling.guidance"):
        gxpo.train("flow", "points", "flow_grpo", 1, out=tmp_path / "a", set={"sampling.guidance": 2.0})
