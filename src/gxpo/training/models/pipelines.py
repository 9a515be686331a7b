"""Pipelines of diffusers as denoising policies: `model: diffusers:DIRECTORY`, and small ones of digits and of letters.

A directory has `unet` or `transformer` with its config.json, and `scheduler`, as `save_pretrained` of a pipeline writes
them; with `vae`, latents are decoded by it to be seen. Its scheduler gives the levels alone: the noise of the steps is
the rollout's.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gxpo.base.errors import ModelError, need
from gxpo.environments.tasks import letters
from gxpo.models.cache import cache_directory, code_of, put
from gxpo.models.denoising import Denoiser
from gxpo.training.models import flow

NAME = "diffusers:"
NETWORKS = {"UNet2DModel": "unet", "DiTTransformer2DModel": "transformer", "Transformer2DModel": "transformer"}
STEPS = 10
RECIPE: Mapping[str, Any] = {"batch": 64, "steps": 400, "lr": 4e-3, "unconditional": 0.1}
N_LETTERS = 2000


class PipelineModel(Denoiser):
    """A network of diffusers with the levels of its scheduler; a condition is the number of a class.

    network    UNet2DModel, or DiTTransformer2DModel or Transformer2DModel on patches with classes
    scheduler  DDPMScheduler, DDIMScheduler or FlowMatchEulerDiscreteScheduler
    steps      denoising steps
    guidance   classifier-free: output(null) + guidance (output(condition) - output(null)); 1: none
    null       condition that stands for none
    vae        None, or what decodes latents
    """

    vae: Any
    guidance: float
    null: int | None

    def __init__(
        self, network: Any, scheduler: Any, steps: int = STEPS, guidance: float = 1.0, null: int | None = None,
        vae: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        c = network.config
        self.network, self.guidance, self.null = network, guidance, null
        # not a submodule: it is neither trained nor copied
        object.__setattr__(self, "vae", vae)
        side = c.sample_size if isinstance(c.sample_size, (list, tuple)) else (c.sample_size, c.sample_size)
        self.shape = (c.in_channels, *side)
        self.dimension = int(np.prod(self.shape))
        classes = c.get("num_embeds_ada_norm") or c.get("num_class_embeds")
        self.has_classes, self.conditions = bool(classes), int(classes or 1)
        if guidance != 1 and null is None and "num_embeds_ada_norm" in c and c.get("num_embeds_ada_norm"):
            self.null = self.conditions  # DiT's embedding has one more row, for none
        if guidance != 1 and (not self.has_classes or self.null is None):
            raise ModelError(
                f"sampling.guidance={guidance}: "
                + ("the model has no conditions: leave it out" if not self.has_classes else
                   "say which condition stands for none: sampling.null_condition")
            )  # fmt: skip
        self._read_scheduler(scheduler, steps)

    def _read_scheduler(self, scheduler: Any, steps: int) -> None:
        """Take the levels and what the network predicts from a scheduler; ModelError for what is not understood."""
        c, name = scheduler.config, type(scheduler).__name__
        self.train_steps = int(c.num_train_timesteps)
        if steps < 2 or steps > self.train_steps:
            raise ModelError(f"sampling.denoising_steps={steps}: from 2 to {self.train_steps}, the last is not trained")
        if name == "FlowMatchEulerDiscreteScheduler":
            refused_options = [k for k in ("use_dynamic_shifting", "stochastic_sampling", "invert_sigmas") if c.get(k)]
        elif name in ("DDPMScheduler", "DDIMScheduler"):
            refused_options = [k for k in ("thresholding", "rescale_betas_zero_snr") if c.get(k)]
            if c.timestep_spacing != "leading":
                refused_options.append(f"timestep_spacing={c.timestep_spacing}")
            if c.prediction_type not in ("epsilon", "v_prediction", "sample"):
                refused_options.append(f"prediction_type={c.prediction_type}")
        else:
            raise ModelError(
                f"scheduler {name}: known are DDPMScheduler, DDIMScheduler, FlowMatchEulerDiscreteScheduler"
            )
        if refused_options:
            raise ModelError(
                f"scheduler {name} with {', '.join(refused_options)}: not supported, change its configuration"
            )
        scheduler.set_timesteps(steps)
        self.clip, self.derives_noise = None, name == "DDPMScheduler"
        if name == "FlowMatchEulerDiscreteScheduler":
            self.kind, self.noise, self.times = "flow", "flow_sde", scheduler.sigmas.to(torch.float64).cpu()
            return
        self.kind, self.noise = c.prediction_type, "ddim_eta"
        self.clip = float(c.clip_sample_range) if c.clip_sample else None
        first_abar = 1.0 if c.get("set_alpha_to_one", True) else float(scheduler.alphas_cumprod[0])
        self.abar = torch.cat([torch.tensor([first_abar]), scheduler.alphas_cumprod]).to(torch.float64)  # from t = -1
        self.times = torch.cat([scheduler.timesteps.cpu(), torch.tensor([-1])]).to(torch.float64)

    def levels(self, time: Tensor) -> tuple[Tensor, Tensor]:
        if self.kind == "flow":
            return super().levels(time)
        abar = self.abar.to(time.device)[time.long() + 1]
        return abar.sqrt(), (1 - abar).sqrt()

    def output(self, latent: Tensor, condition: Tensor, time: Tensor) -> Tensor:
        x, n = latent.to(self.dtype).view(-1, *self.shape), len(latent)
        t = (time * self.train_steps if self.kind == "flow" else time.long()).to(latent.device)
        t = t.to(self.dtype) if t.is_floating_point() else t
        classes = condition.to(latent.device).long()
        if self.guidance != 1:  # both outputs in one pass
            assert self.null is not None
            x, t, classes = (
                torch.cat([x, x]),
                torch.cat([t, t]),
                torch.cat([classes, torch.full_like(classes, self.null)]),
            )
        options = {"class_labels": classes} if self.has_classes else {}
        # a network that learns variances too gives them as further channels
        out = self.network(x, t, **options).sample[:, : self.shape[0]].reshape(len(x), -1).to(torch.float64)
        if self.guidance == 1:
            return out
        return out[n:] + self.guidance * (out[:n] - out[n:])

    def parts(self, latent: Tensor, condition: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        data, noise = super().parts(latent, condition, time)
        if self.clip is None:
            return data, noise
        data = data.clamp(-self.clip, self.clip)
        if self.derives_noise:  # DDPM's mean is of the latent and the clipped data
            alpha, sigma = self.levels(time)
            noise = (latent.to(torch.float64) - alpha[:, None] * data) / sigma[:, None]
        return data, noise

    @torch.no_grad()
    def pictures(self, latent: Tensor) -> np.ndarray:
        """Pixels [n, H, W, 3] uint8 of samples [n, D]: decoded by the vae, or latents themselves, in [-1, 1]."""
        x = latent.view(-1, *self.shape).to(self.dtype)
        if self.vae is not None:
            c = self.vae.config
            x = x / c.scaling_factor + (c.get("shift_factor") or 0.0)
            x = self.vae.decode(x.to(next(self.vae.parameters()))).sample
        pixels = ((x / 2 + 0.5).clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()
        return pixels if pixels.shape[-1] == 3 else pixels[..., :1].repeat(3, -1)


# ---------------------------------------------------------------- files
def is_pipeline(name: str) -> bool:
    """Return True if a model name is of a pipeline of diffusers."""
    return name.startswith(NAME)


def is_built_in(name: str) -> bool:
    """Return True for `diffusers:digits` and `diffusers:letters`."""
    return is_pipeline(name) and name.removeprefix(NAME) in DATA


def denoises(name: str) -> bool:
    """Return True if a model name is of a denoising model: a pipeline, or gxpo's own flow."""
    return is_pipeline(name) or flow.is_flow(name)


def check(name: str) -> None:
    """Raise ModelError for a directory that is no pipeline that can be trained; nothing of it is loaded."""
    if not is_built_in(name):
        components_of(Path(name.removeprefix(NAME)))


def components_of(directory: Path) -> tuple[Path, str, Path]:
    """Folder and class of the network, and folder of the scheduler."""
    for folder in ("unet", "transformer"):
        file = directory / folder / "config.json"
        if file.is_file():
            kind = json.loads(file.read_text(encoding="utf-8")).get("_class_name")
            if kind not in NETWORKS or (directory / "text_encoder").is_dir():
                raise ModelError(
                    f"{directory}: {kind}{' with a text encoder' if kind in NETWORKS else ''} is not supported: known "
                    f"are {', '.join(NETWORKS)}, with classes or without a condition"
                )
            if not (directory / "scheduler" / "scheduler_config.json").is_file():
                raise ModelError(
                    f"{directory}: no scheduler/scheduler_config.json: save the pipeline with its scheduler"
                )
            return directory / folder, kind, directory / "scheduler"
    raise ModelError(f"{directory}: neither unet/config.json nor transformer/config.json: name a pipeline's directory")


def directory_of(
    name: str, cache: str | os.PathLike[str] | None = None, notify: Callable[[str], None] = lambda line: None
) -> Path:
    """Directory of a pipeline by its model name; those of digits and of letters are made where they are not there."""
    own_name = name.removeprefix(NAME)
    return built_in_directory(own_name, cache, notify) if is_built_in(name) else Path(own_name)


def load(
    name: str, *, steps: int | None = None, guidance: float = 1.0, null: int | None = None, dtype: str = "float32",
    cache: str | os.PathLike[str] | None = None, notify: Callable[[str], None] = lambda line: None,
) -> PipelineModel:  # fmt: skip
    """Load a pipeline from its directory; those of digits and letters are made on the first call and then cached."""
    diffusers: Any = need("diffusers", "diffusers")
    is_own, directory = is_built_in(name), directory_of(name, cache, notify)
    folder, kind, scheduler_folder = components_of(directory)
    network = getattr(diffusers, kind).from_pretrained(folder, use_safetensors=True)
    config = json.loads((scheduler_folder / "scheduler_config.json").read_text(encoding="utf-8"))
    if not hasattr(diffusers, str(config.get("_class_name"))):
        raise ModelError(
            f"{directory}: scheduler {config.get('_class_name')} is not in diffusers {diffusers.__version__}"
        )
    scheduler = getattr(diffusers, config["_class_name"]).from_pretrained(scheduler_folder)
    vae = None
    if (directory / "vae").is_dir():
        vae = diffusers.AutoencoderKL.from_pretrained(directory / "vae", use_safetensors=True).eval()
    if is_own and null is None:
        null = 10
    model = PipelineModel(network, scheduler, steps or STEPS, guidance, null, vae)
    if is_own:
        model.conditions = 10  # the eleventh stands for none, and is no prompt
    return model.to(getattr(torch, dtype)).eval()


def with_adapters(model: PipelineModel, rank: int, alpha: float, targets: str | tuple[str, ...], seed: int) -> None:
    """Add LoRA adapters to the network, which alone stay trainable; "all-linear": not its last layer."""
    peft: Any = need("peft", "diffusers")
    linear = [name for name, x in model.network.named_modules() if isinstance(x, nn.Linear)]
    names = [x for x in linear if not x.startswith("proj_out")] if targets == "all-linear" else list(targets)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            model.network.requires_grad_(False)
            peft.inject_adapter_in_model(peft.LoraConfig(r=rank, lora_alpha=alpha, target_modules=names), model.network)
        except ValueError as error:
            text = " ".join(str(error).split())[:200]
            raise ModelError(f"learner.lora_targets: the network can't be given these adapters: {text}") from error


def save(model: PipelineModel, source: Path, target: Path) -> None:
    """Write a pipeline's directory with the trained network: adapters are merged, other components copied."""
    import shutil

    folder, _, _ = components_of(source)
    for entry in source.iterdir():
        if entry != folder:
            (shutil.copytree if entry.is_dir() else shutil.copy2)(entry, target / entry.name)
    network: Any = model.network
    for module in list(network.modules()):
        for name, child in list(module.named_children()):
            if hasattr(child, "base_layer"):
                child.merge()
                setattr(module, name, child.base_layer)
    network.save_pretrained(target / folder.name, safe_serialization=True)


# ---------------------------------------------------------------- the models of digits and of letters
def digit_data() -> tuple[np.ndarray, np.ndarray]:
    """Pixels [n, 64] in [-1, 1], of 16 grey levels, and classes [n] of scikit-learn's digits."""
    datasets: Any = need("sklearn.datasets", "diffusers")
    pixels, classes = datasets.load_digits(return_X_y=True)
    return pixels / 8 - 1, classes


def letter_data() -> tuple[np.ndarray, np.ndarray]:
    """Pixels [n, 64] in [-1, 1] and classes [n] of letters that Pillow draws."""
    pixels, classes, _ = letters.draw_letters(N_LETTERS)
    return 2 * pixels.reshape(N_LETTERS, -1) - 1, classes


DATA: Mapping[str, Callable[[], tuple[np.ndarray, np.ndarray]]] = {"digits": digit_data, "letters": letter_data}


def built_in_directory(data: str, cache: str | os.PathLike[str] | None, notify: Callable[[str], None]) -> Path:
    """Directory of a small UNet that was trained by flow matching on 8 x 8 pictures of ten classes, made once.

    data  "digits" or "letters"
    """
    import hashlib

    diffusers: Any = need("diffusers", "diffusers")
    digest = hashlib.blake2b(digest_size=6)
    for part in (json.dumps(dict(RECIPE)).encode(), torch.__version__.encode(), diffusers.__version__.encode()):
        digest.update(part)
    digest.update(code_of(Path(__file__)))
    if data == "letters":
        digest.update(need("PIL", "diffusers").__version__.encode() + code_of(Path(letters.__file__)))
    target = cache_directory(cache) / f"diffusers-{data}-{digest.hexdigest()}"
    if not target.is_dir():
        notify(f"flow matching of a small UNet on {data} (once, then cached)")
        network, scheduler = small_network(), diffusers.FlowMatchEulerDiscreteScheduler()
        warm_up(network, *DATA[data](), RECIPE)

        def fill(folder: Path) -> None:
            network.save_pretrained(folder / "unet", safe_serialization=True)
            scheduler.save_pretrained(folder / "scheduler")

        put(target, fill)
    return target


def small_network(seed: int = 0) -> Any:
    """Random UNet2DModel of 8 x 8 grey pictures in ten classes and one for none; 0.1 million parameters."""
    diffusers: Any = need("diffusers", "diffusers")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return diffusers.UNet2DModel(
            sample_size=8, in_channels=1, out_channels=1, layers_per_block=1, block_out_channels=(16, 32),
            down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
            norm_num_groups=8, num_class_embeds=11,
        )  # fmt: skip


def warm_up(
    network: nn.Module, pixels: np.ndarray, labels: np.ndarray, recipe: Mapping[str, Any], seed: int = 0
) -> None:
    """Train a class-conditional network by flow matching on pictures: pixels [n, 64] in [-1, 1], labels [n]."""
    data = torch.tensor(pixels, dtype=torch.float32).view(-1, 1, 8, 8)
    classes, n = torch.tensor(labels), recipe["batch"]
    optimizer, random = torch.optim.AdamW(network.parameters(), lr=recipe["lr"]), torch.Generator().manual_seed(seed)
    network.train()
    for step in range(recipe["steps"]):
        for group in optimizer.param_groups:
            group["lr"] = recipe["lr"] * (1 - step / recipe["steps"])
        rows = torch.randint(len(data), (n,), generator=random)
        is_dropped = torch.rand(n, generator=random) < recipe["unconditional"]
        noise, sigma = torch.randn(n, 1, 8, 8, generator=random), torch.rand(n, generator=random)
        latent = torch.lerp(data[rows], noise, sigma[:, None, None, None])
        output = network(latent, sigma * 1000, class_labels=classes[rows].masked_fill(is_dropped, 10)).sample
        loss = (output - (noise - data[rows])).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    network.eval()
