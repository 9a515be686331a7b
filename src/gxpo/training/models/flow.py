"""Flow model for policy gradients: a small velocity network on points, its conditions, and its warm start.

A sample starts as noise at sigma 1 and is brought to sigma 0 in T steps (`gxpo.models.denoising`); x_sigma = (1 -
sigma) data + sigma noise, and the network says v = noise - data.
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
from gxpo.models.denoising import Denoiser
from gxpo.parts.protocols import Message

NAME = "flow"
STEPS = 8  # denoising steps of the model "flow"
WIDTH = 96
RECIPE: dict[str, Any] = {"width": WIDTH, "batch": 1024, "steps": 1500, "lr": 4e-3, "heed": 0.35, "spread": 0.12}


# ---------------------------------------------------------------- the schedule
def schedule(steps: int, shift: float = 1.0) -> Tensor:
    """Noise schedule: [steps + 1] float64 levels from 1 to 0; `shift` > 1 spends more steps at high noise.

    >>> schedule(4).tolist()
    [1.0, 0.75, 0.5, 0.25, 0.0]
    """
    sigma = torch.linspace(1, 0, steps + 1, dtype=torch.float64)
    return shift * sigma / (1 + (shift - 1) * sigma)


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


class FlowModel(Denoiser):
    """The flow policy: a velocity network with its schedule. A condition is a token id below `conditions`."""

    dimension = 2
    conditions = points.DIRECTIONS
    network: VelocityNetwork

    def __init__(self, steps: int = STEPS, width: int = WIDTH, seed: int = 0) -> None:
        super().__init__()
        if steps < 2:
            raise ModelError(f"a flow needs at least 2 denoising steps, not {steps}: the last one is not trained")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.network = VelocityNetwork(width)
        self.times = schedule(steps)


# ---------------------------------------------------------------- tokenizer and chat format
class Conditions:
    """Tokenizer of a flow: condition 137 is the text "137". Latents have no text."""

    pad_token_id = eos_token_id = bos_token_id = None

    def __init__(self, conditions: int = FlowModel.conditions) -> None:
        self.conditions = conditions

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The id of a condition; `ModelError` for any other text."""
        if not (text.strip().isdecimal() and int(text) < self.conditions):
            raise ModelError(
                f"this model's prompt is a condition, a whole number below {self.conditions}, not {text!r}"
            )
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
