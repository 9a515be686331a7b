r"""Flow model for policy gradients: a small velocity network and the Gaussian policy of its SDE sampler.

A sample starts as noise x_0 ~ N(0, I) at sigma 1 and is brought to sigma 0 in T steps; x_sigma = (1 - sigma) data +
sigma noise, and the network says v = noise - data. With dt = sigma_{k+1} - sigma_k < 0 step k is

    x_{k+1} = x_k + v dt + std_k^2 / (2 sigma_k) (x_k + (1 - sigma_k) v) dt + s_k eps,    s_k = std_k sqrt(-dt)

a Gaussian whose mean moves with the parameters: an action, and s_k = 0 is the deterministic ODE step. The SDE has the
ODE's marginals whatever std_k is. `transition_mean` needs only what a rollout stores (latents, their times, s_k), so
a learner needs no schedule.

Choices. The last step is always the ODE's: it is not trained (Flow-GRPO leaves it out of the loss, and draws it with
noise that nothing takes out of the sample again). Log-densities are means over the dimensions, as in the reference: a
ratio is the D-th root of the true one, which is what a clip of 1e-4 is made for.

Source: Flow-GRPO, arXiv 2505.05470, and its code (yifan123/flow_grpo).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gxpo.base.errors import ModelError, need
from gxpo.environments.tasks import points
from gxpo.models.cache import cache_directory, code_of, put
from gxpo.parts.protocols import Message

NAME = "flow"
STEPS = 8  # denoising steps of the model "flow"
WIDTH = 96
RECIPE: dict[str, Any] = {"width": WIDTH, "batch": 1024, "steps": 1500, "lr": 4e-3, "heed": 0.35, "spread": 0.12}


# ---------------------------------------------------------------- the sampler's arithmetic
def schedule(steps: int, shift: float = 1.0) -> Tensor:
    """Noise schedule: [steps + 1] float64 levels from 1 to 0; `shift` > 1 spends more steps at high noise.

    >>> schedule(4).tolist()
    [1.0, 0.75, 0.5, 0.25, 0.0]
    """
    sigma = torch.linspace(1, 0, steps + 1, dtype=torch.float64)
    return shift * sigma / (1 + (shift - 1) * sigma)


def noise_scales(sigmas: Tensor, level: float) -> Tensor:
    """Noise scales s_k [T] float64 of a schedule [T + 1]: level sqrt(sigma_k / (1 - sigma_k)) sqrt(-dt_k).

    At sigma 1, where this diverges, 1 - sigma is taken from the next level, as in the reference.
    """
    sigma = sigmas[:-1]
    safe_sigma = torch.where(sigma >= 1, sigmas[1], sigma)
    return level * (sigma / (1 - safe_sigma)).sqrt() * (-sigmas.diff()).sqrt()


def transition_mean(latent: Tensor, velocity: Tensor, sigma: Tensor, next_sigma: Tensor, scale: Tensor) -> Tensor:
    """[n, D]: mean of the next latent of each row.

    latent, velocity [n, D]; sigma > next_sigma [n] noise levels; scale [n] = s_k, 0 for the ODE
    """
    dt = next_sigma - sigma
    std2 = scale.square() / -dt
    drift = velocity + (std2 / (2 * sigma))[:, None] * (latent + (1 - sigma)[:, None] * velocity)
    return latent + drift * dt[:, None]


def log_density(latent: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    """[n]: Gaussian log-density log N(latent; mean, scale^2 I), averaged over D dimensions; exactly 0 if `scale` is 0.

    An ODE step draws nothing: it happens with probability 1, as a greedy token does.
    """
    is_sampled = scale > 0
    safe_scale = torch.where(is_sampled, scale, torch.ones_like(scale))
    density = (
        -((latent - mean) / safe_scale[:, None]).square().mean(1) / 2 - safe_scale.log() - math.log(2 * math.pi) / 2
    )
    return torch.where(is_sampled, density, torch.zeros_like(density))


def entropy(scale: Tensor) -> Tensor:
    """[n]: entropy of N(., scale^2 I) in nats, averaged over the dimensions; 0 for deterministic steps."""
    is_sampled = scale > 0
    sampled_entropy = torch.where(is_sampled, scale, torch.ones_like(scale)).log() + (1 + math.log(2 * math.pi)) / 2
    return torch.where(is_sampled, sampled_entropy, torch.zeros_like(sampled_entropy))


# ---------------------------------------------------------------- the model
class VelocityNetwork(nn.Module):
    """Velocity network v(x, sigma, condition): an MLP of the point, the noise level and the condition's direction."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.Linear(11, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU()
        )
        self.out = nn.Linear(width, 2)

    def forward(self, latent: Tensor, sigma: Tensor, condition: Tensor) -> Tensor:
        """[n, 2] from latent [n, 2], sigma [n], condition [n] (whole degrees)."""
        direction = points.target(condition).to(latent)
        # Features: coordinates along and across the direction, so that the network need not learn the rotation.
        t = sigma[:, None].to(latent)
        times = [t, (math.pi * t).cos(), (2 * math.pi * t).sin(), (2 * math.pi * t).cos()]
        along_and_across = [
            (latent * direction).sum(1, keepdim=True),
            latent[:, :1] * direction[:, 1:] - latent[:, 1:] * direction[:, :1],
        ]
        radius = latent.square().sum(1, keepdim=True)
        return self.out(self.inner(torch.cat([latent, direction, *times, *along_and_across, radius], 1)))


class FlowModel(nn.Module):
    """The flow policy: a velocity network with its schedule. A condition is a token id below `conditions`."""

    dimension = 2
    conditions = points.DIRECTIONS

    def __init__(self, steps: int = STEPS, width: int = WIDTH, seed: int = 0) -> None:
        super().__init__()
        if steps < 2:
            raise ModelError(f"a flow needs at least 2 denoising steps, not {steps}: the last one is not trained")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.network = VelocityNetwork(width)
        self.sigmas = schedule(steps)

    @property
    def steps(self) -> int:
        """Number of denoising steps."""
        return self.sigmas.numel() - 1

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the parameters, and of the latents that a sampler stores."""
        return next(self.parameters()).dtype

    def noise_scales(self, level: float) -> Tensor:
        """Noise scales s_k [T] at a noise level; 0 at the last step."""
        scales = noise_scales(self.sigmas, level)
        scales[-1] = 0.0
        return scales

    def mean(self, latent: Tensor, condition: Tensor, sigma: Tensor, next_sigma: Tensor, scale: Tensor) -> Tensor:
        """[n, D] float64: mean of the next latent; the network runs in its own dtype, the rest in float64."""
        velocity = self.network(latent.to(self.dtype), sigma, condition).to(torch.float64)
        return transition_mean(latent.to(torch.float64), velocity, sigma, next_sigma, scale)

    log_density = staticmethod(log_density)
    entropy = staticmethod(entropy)


# ---------------------------------------------------------------- tokenizer and chat format
class Conditions:
    """Tokenizer of a flow: condition 137 is the text "137". Latents have no text."""

    pad_token_id = eos_token_id = bos_token_id = None

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The id of a condition; `ModelError` for any other text."""
        if not (text.strip().isdecimal() and int(text) < FlowModel.conditions):
            raise ModelError(f"a flow's prompt is a whole number of degrees below {FlowModel.conditions}, not {text!r}")
        return [int(text)]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """Ids as numbers; latents are left out."""
        return " ".join(str(i) for i in ids if i >= 0)


class ConditionChat:
    """Chat format of a flow: the only message is the condition; nothing follows the sample."""

    stop_ids: tuple[int, ...] = ()

    def __init__(self, tokenizer: Conditions) -> None:
        self.tokenizer = tokenizer

    def start(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> Any:
        """Return a conversation whose `context` is the condition's id."""
        if len(messages) != 1 or tools:
            raise ModelError("a flow takes one message, its condition: leave out chat.system, tools and environments")
        return _ConditionConversation(tuple(self.tokenizer.encode(str(messages[0]["content"]))))


class _ConditionConversation:
    """Conversation of a flow: a context, and no turn after it."""

    def __init__(self, context: tuple[int, ...]) -> None:
        self.context = context


# ---------------------------------------------------------------- warm start
def warm_up(seed: int = 0, recipe: Mapping[str, Any] | None = None) -> VelocityNetwork:
    """Train a network by flow matching on `points.mixture`: E |v(x_sigma, sigma, c) - (noise - data)|^2, sigma uniform.

    Deterministic by `seed` on one machine with the same number of threads; torch's global random state is left alone.
    """
    recipe = RECIPE if recipe is None else recipe
    network = FlowModel(width=recipe["width"], seed=seed).network
    optimizer = torch.optim.Adam(network.parameters(), lr=recipe["lr"])
    random = torch.Generator().manual_seed(seed)
    n, total = recipe["batch"], recipe["steps"]
    for step in range(total):
        for group in optimizer.param_groups:
            group["lr"] = recipe["lr"] * (1 - step / total)
        condition = torch.randint(points.DIRECTIONS, (n,), generator=random)
        # Draws in a fixed order from one generator: the weights depend on the seed alone.
        uniform = torch.rand(n, 2, generator=random, dtype=torch.float64)
        normal = torch.randn(n, 2, generator=random, dtype=torch.float64)
        data = points.mixture(condition, uniform, normal, recipe["heed"], recipe["spread"]).to(torch.float32)
        noise = torch.randn(n, 2, generator=random)
        sigma = torch.rand(n, generator=random)
        latent = torch.lerp(data, noise, sigma[:, None])
        loss = (network(latent, sigma, condition) - (noise - data)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return network


def is_flow(name: str) -> bool:
    """Return True if a model name is a flow's: "flow" or "flow:STEPS".

    >>> is_flow("flow:6"), is_flow("flower")
    (True, False)
    """
    return name.partition(":")[0] == NAME


def steps_of(name: str) -> int:
    """Parse the number of denoising steps from a flow's name."""
    _, colon, count = name.partition(":")
    if not is_flow(name) or (colon and not (count.isdecimal() and len(count) < 5 and int(count))):
        raise ModelError(f"unknown flow {name!r}: there is 'flow', or 'flow:6' for 6 denoising steps")
    return int(count) if count else STEPS


def load(
    name: str,
    *,
    cache: str | os.PathLike[str] | None = None,
    dtype: str = "float32",
    notify: Callable[[str], None] = lambda line: None,
) -> FlowModel:
    """Load the warm-started flow "flow" (8 denoising steps) or "flow:STEPS"; made on the first call, then cached.

    The network is the same for every number of steps.
    """
    steps = steps_of(name)
    safetensors: Any = need("safetensors.torch", "train")
    model = FlowModel(steps)
    # The folder's name covers everything that the weights depend on, so a changed recipe or source trains anew.
    digest = hashlib.blake2b(digest_size=6)
    for part in (json.dumps(RECIPE, sort_keys=True), torch.__version__):
        digest.update(part.encode())
    for module in (__file__, points.__file__):
        digest.update(code_of(Path(module)))
    target = cache_directory(cache) / f"flow-points-0-{digest.hexdigest()}"
    if not target.is_dir():  # `put` moves it there whole, so a folder that exists is complete
        notify("flow matching of the toy flow (once, then cached)")
        network = warm_up()
        put(target, lambda folder: safetensors.save_file(network.state_dict(), folder / "network.safetensors"))
    model.network.load_state_dict(safetensors.load_file(target / "network.safetensors"))
    return model.to(getattr(torch, dtype)).eval()
