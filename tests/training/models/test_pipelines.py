"""Pipelines of diffusers: steps agree with its schedulers, guidance, adapters, and the way back into a directory."""

import json

import diffusers
import pytest
import torch

from gxpo.base.errors import ModelError
from gxpo.training.models import pipelines
from gxpo.training.models.pipelines import PipelineModel

DDIM, DDPM, FLOW = diffusers.DDIMScheduler, diffusers.DDPMScheduler, diffusers.FlowMatchEulerDiscreteScheduler
NET = pipelines.small_network()


def double(scheduler, steps, **options):
    return PipelineModel(NET, scheduler, steps, **options).double()


def small_dit():
    torch.manual_seed(0)
    return diffusers.DiTTransformer2DModel(
        num_attention_heads=2, attention_head_dim=8, in_channels=1, out_channels=1, num_layers=1, sample_size=8,
        patch_size=2, num_embeds_ada_norm=10, norm_num_groups=1,
    )  # fmt: skip


@pytest.mark.parametrize("steps", [4, 10])
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (DDIM, {"clip_sample": False}),
        (DDIM, {"clip_sample": True}),
        (DDIM, {"clip_sample": False, "set_alpha_to_one": False}),
        (DDIM, {"clip_sample": False, "prediction_type": "v_prediction", "beta_schedule": "scaled_linear"}),
        (DDPM, {"clip_sample": False}),
        (DDPM, {"clip_sample": True, "beta_schedule": "squaredcos_cap_v2"}),
        (FLOW, {"shift": 3.0}),
    ],
    ids=["ddim", "ddim-clip", "ddim-last", "ddim-v", "ddpm", "ddpm-clip", "flow"],
)
def test_steps_agree_with_the_schedulers(kind, settings, steps):
    scheduler = kind(**settings)
    model, random = double(scheduler, steps), torch.Generator().manual_seed(0)
    level, noise = (0.0, "auto") if kind is FLOW else (1.0, "ddpm") if kind is DDPM else (0.7, "ddim_eta")
    scale, kept = model.noise_scales(level, noise)
    x, classes = torch.randn(2, 64, generator=random, dtype=torch.float64), torch.tensor([1, 2])
    for k in range(steps):
        t, there = model.times[k].expand(2), model.times[k + 1].expand(2)
        with torch.no_grad():
            output = model.output(x, classes, t).view(2, 1, 8, 8)
            mean = model.mean(x, classes, t, there, kept[k].expand(2))
        draw = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(k), dtype=torch.float64)
        options = {}
        if kind is DDIM:  # without noise in the last step, as here
            options = {"eta": level, "variance_noise": draw} if k < steps - 1 else {"eta": 0.0}
        elif kind is DDPM:
            options = {"generator": torch.Generator().manual_seed(k)}
        wanted = scheduler.step(output, scheduler.timesteps[k], x.view(2, 1, 8, 8), **options).prev_sample
        actual = mean.view(2, 1, 8, 8) + scale[k] * draw
        assert torch.allclose(actual, wanted, rtol=1e-6, atol=1e-6)
        x = actual.view(2, 64)


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (DDIM, {"thresholding": True}, "DDIMScheduler with thresholding"),
        (DDPM, {"timestep_spacing": "trailing"}, "timestep_spacing=trailing"),
        (FLOW, {"use_dynamic_shifting": True}, "use_dynamic_shifting"),
        (diffusers.PNDMScheduler, {}, "scheduler PNDMScheduler: known are"),
    ],
)
def test_schedulers_that_are_not_understood_are_refused(kind, settings, message):
    with pytest.raises(ModelError, match=message):
        double(kind(**settings), 4)


def test_guidance_mixes_two_outputs():
    plain, guided = double(FLOW(), 4), double(FLOW(), 4, guidance=3.0, null=10)
    x = torch.randn(2, 64, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    c, t = torch.tensor([4, 7]), torch.tensor([0.75, 0.5], dtype=torch.float64)
    with torch.no_grad():
        with_class, without = plain.output(x, c, t), plain.output(x, torch.tensor([10, 10]), t)
        assert torch.allclose(guided.output(x, c, t), without + 3 * (with_class - without), atol=1e-9)
    with pytest.raises(ModelError, match=r"sampling.null_condition"):
        double(FLOW(), 4, guidance=3.0)
    assert PipelineModel(small_dit(), DDIM(), 4, guidance=2.0).null == 10  # DiT's last embedding


def test_a_dit_is_a_policy_too():
    model = PipelineModel(small_dit(), DDPM(clip_sample=False), 5)
    assert (model.kind, model.noise, model.conditions, model.dimension) == ("epsilon", "ddim_eta", 10, 64)
    out = model.output(torch.zeros(3, 64), torch.tensor([0, 1, 9]), torch.tensor([800.0, 0.0, 200.0]))
    assert out.shape == (3, 64) and bool(out.isfinite().all())
    pixels = model.pictures(torch.tensor([[-1.0] * 32 + [1.0] * 32]))
    assert pixels.shape == (1, 8, 8, 3)
    assert pixels[0, 0, 0].tolist() == [0] * 3 and pixels[0, 7, 7].tolist() == [255] * 3


def saved(folder, network=NET, scheduler=None):
    network.save_pretrained(folder / "unet", safe_serialization=True)
    (scheduler or FLOW()).save_pretrained(folder / "scheduler")
    return folder


def test_adapters_alone_are_trained_and_come_back_merged(tmp_path):
    source, target = saved(tmp_path / "source"), tmp_path / "target"
    model = pipelines.load(f"diffusers:{source}", steps=4)
    pipelines.with_adapters(model, 2, 4.0, "all-linear", seed=0)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    assert trained and all("lora_" in name for name in trained)
    x, c, t = torch.randn(1, 64), torch.tensor([3]), torch.tensor([0.5])
    with torch.no_grad():
        start = model.output(x, c, t)
        for p in trained.values():
            p.add_(0.05)
        moved = model.output(x, c, t)
    target.mkdir()
    pipelines.save(model, source, target)
    again = diffusers.UNet2DModel.from_pretrained(target / "unet")
    with torch.no_grad():
        out = again(x.view(1, 1, 8, 8), t * 1000, class_labels=c).sample.reshape(1, 64)
    assert torch.allclose(out.double(), moved, atol=1e-5) and not torch.allclose(moved, start, atol=1e-4)
    assert (target / "scheduler" / "scheduler_config.json").is_file()


def test_directories_that_are_no_pipelines_are_refused_unloaded(tmp_path):
    with pytest.raises(ModelError, match=r"neither unet/config.json nor transformer/config.json"):
        pipelines.check(f"diffusers:{tmp_path}")
    folder = saved(tmp_path / "one")
    config = json.loads((folder / "unet" / "config.json").read_text())
    (folder / "unet" / "config.json").write_text(json.dumps(config | {"_class_name": "UNet2DConditionModel"}))
    with pytest.raises(ModelError, match=r"UNet2DConditionModel is not supported: known are UNet2DModel"):
        pipelines.check(f"diffusers:{folder}")


@pytest.mark.parametrize("data", ["digits", "letters"])
def test_a_small_pipeline_is_made_once_for_each_kind_of_pictures(data, tmp_path, monkeypatch):
    monkeypatch.setattr(pipelines, "RECIPE", {**pipelines.RECIPE, "steps": 2})
    monkeypatch.setattr(pipelines, "N_LETTERS", 20)
    messages = []
    name = f"diffusers:{data}"
    model = pipelines.load(name, steps=4, cache=tmp_path, notify=messages.append)
    again = pipelines.load(name, steps=4, cache=tmp_path, notify=messages.append)
    assert messages == [f"flow matching of a small UNet on {data} (once, then cached)"]
    assert (model.conditions, model.null, model.dimension, model.kind) == (10, 10, 64, "flow")
    x, c, t = torch.zeros(1, 64), torch.tensor([3]), torch.tensor([0.5])
    with torch.no_grad():
        assert torch.equal(model.output(x, c, t), again.output(x, c, t))
    assert [path.name.rpartition("-")[0] for path in tmp_path.iterdir()] == [f"diffusers-{data}"]
    pipelines.check(name)
    with pytest.raises(ModelError, match="name a pipeline's directory"):
        pipelines.check(f"diffusers:{data}s")
