r"""Steps of diffusion and flow samplers as Gaussian actions: levels, noise scales, means, densities, matching errors.

A latent is alpha data + sigma noise: 1 - sigma and sigma of a flow, sqrt(abar) and sqrt(1 - abar) of a diffusion. A
network's prediction gives both parts, and a step from (alpha, sigma) to (alpha', sigma') is

    x' = alpha' data + carry noise + s eps

    ODE             s = 0                                                  carry = sigma'
    flow_sde        s = level sqrt(sigma / (1 - sigma)) sqrt(-dt)          carry = sigma' - s^2 / (2 sigma)
    dance           s = level sqrt(-dt)                                    carry = sigma' - s^2 / (2 sigma)
    ddim_eta, ddpm  s = level sigma' sqrt(1 - (alpha sigma' / (alpha' sigma))^2)     carry = sqrt(sigma'^2 - s^2)

with dt = sigma' - sigma of a flow; `ddpm` is `ddim_eta` at level 1. The mean moves with the parameters: an action. A
rollout stores latents, their times, s and carry, so that a learner needs no schedule.

Choices. The last step is always the ODE's: it is not trained. Log-densities are means over the dimensions, as in the
authors' code: a ratio is the D-th root of the true one, which is what a clip of 1e-4 is made for.

Sources: DDIM, arXiv 2010.02502; Flow-GRPO, arXiv 2505.05470; DanceGRPO, arXiv 2505.07818; their code.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gxpo.base.errors import ModelError

NOISES = ("flow_sde", "dance", "ddim_eta", "ddpm")
FLOW_NOISES = ("flow_sde", "dance")  # stochastic differential equations of a flow


# ---------------------------------------------------------------- steps
def noise_scales(noise: str, level: float | Tensor, alpha: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor]:
    """Noise scales s and coefficients `carry` of the predicted noise of each step, [T] and [T]; the last step is the
    ODE's.

    level         of all steps, or of each, [T]
    alpha, sigma  [T + 1] float64, from noise to data

    At sigma 1, where `flow_sde` diverges, 1 - sigma is taken from the next level, as in the authors' code.

    >>> sigma = torch.tensor([0.8, 0.6, 0.0], dtype=torch.float64)
    >>> [x[0].item() for x in noise_scales("dance", 0.3, 1 - sigma, sigma)]
    [0.13416407864998742, 0.58875]
    """
    now, after = sigma[:-1], sigma[1:]
    level = torch.as_tensor(level, dtype=sigma.dtype, device=sigma.device)
    if noise in FLOW_NOISES:
        safe_sigma = torch.where(now >= 1, sigma[1], now)
        rate = (now / (1 - safe_sigma)).sqrt() if noise == "flow_sde" else torch.ones_like(now)
        scale = level * rate * (now - after).sqrt()
        carry = after - scale.square() / (2 * now)
    else:
        share = 1 - (alpha[:-1] * after / (alpha[1:] * now)).square()
        scale = ((level > 0).to(sigma) if noise == "ddpm" else level) * after * share.clamp_min(0).sqrt()
        carry = (after.square() - scale.square()).clamp_min(0).sqrt()
    is_last = torch.arange(len(now), device=now.device) == len(now) - 1
    return scale.masked_fill(is_last, 0.0), torch.where(is_last, after, carry)


def parts_of(kind: str, output: Tensor, latent: Tensor, alpha: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor]:
    """Data and noise that a network's output says a latent is made of, [n, D] each.

    kind  what the network predicts: "flow" (noise - data), "epsilon" (noise), "v_prediction", "sample" (data)
    """
    a, s = alpha[:, None], sigma[:, None]
    if kind == "flow":
        return latent - s * output, latent + a * output
    if kind == "epsilon":
        return (latent - s * output) / a, output
    if kind == "v_prediction":
        return a * latent - s * output, s * latent + a * output
    return output, (latent - a * output) / s


def target_of(kind: str, data: Tensor, noise: Tensor, alpha: Tensor, sigma: Tensor) -> Tensor:
    """Training target of a network of this kind at alpha data + sigma noise, [n, D]."""
    if kind == "flow":
        return noise - data
    if kind == "epsilon":
        return noise
    return alpha[:, None] * noise - sigma[:, None] * data if kind == "v_prediction" else data


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


def decayed(share: Tensor, end: float) -> Tensor:
    """Factor of the noise level at a share of the whole time: 1 at the noisy end, `end` at the clean one, by a cosine.

    end + (1 - end) (1 + cos(pi (1 - share))) / 2. Source: HiCoGen, arXiv 2511.19965 (decaying stochasticity).

    >>> [round(decayed(torch.tensor(x), 0.0).item(), 6) for x in (1.0, 0.75, 0.0)]
    [1.0, 0.853553, 0.0]
    """
    return end + (1 - end) * (1 + (math.pi * (1 - share)).cos()) / 2


# ---------------------------------------------------------------- models
class Denoiser(nn.Module):
    """Base class of denoising policies: a network, what it predicts, and a schedule of times [T + 1].

    kind        what the network predicts, see `parts_of`
    noise       noise of its steps unless a rollout says another
    dimension   numbers of a latent; a condition is a token id below `conditions`
    """

    kind: str = "flow"
    noise: str = "flow_sde"
    dimension: int
    conditions: int
    times: Tensor
    network: nn.Module
    log_density: ClassVar[Any] = staticmethod(log_density)
    entropy: ClassVar[Any] = staticmethod(entropy)

    @property
    def steps(self) -> int:
        """Number of denoising steps."""
        return self.times.numel() - 1

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the parameters, and of the latents that a sampler stores."""
        return next(self.parameters()).dtype

    def levels(self, time: Tensor) -> tuple[Tensor, Tensor]:
        """Shares alpha and sigma of data and noise in latents of these times, [n] and [n] float64."""
        return 1 - time, time

    def output(self, latent: Tensor, condition: Tensor, time: Tensor) -> Tensor:
        """The network's prediction, [n, D] float64; it runs in its own dtype."""
        return self.network(latent.to(self.dtype), time, condition).to(torch.float64)

    def noise_scales(
        self, level: float, noise: str = "auto", window: int = 0, begin: int = 0, end: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """`noise_scales` of the model's schedule; arguments as in `gxpo.parts.protocols.DenoisingSampling`."""
        noise = self.noise if noise == "auto" else noise
        if noise in FLOW_NOISES and self.kind != "flow":
            raise ModelError(f"rollout.noise={noise} is of flows, and this model predicts {self.kind}: take ddim_eta")
        if window >= self.steps:
            raise ModelError(f"rollout.window={window}: {self.steps - 1} steps can have noise, all but the last")
        level_T = level * decayed(self.times[:-1].to(torch.float64) / self.times[0], end)
        if window:
            first, k = begin % (self.steps - window), torch.arange(self.steps)
            level_T = torch.where((k >= first) & (k < first + window), level_T, 0.0)
        return noise_scales(noise, level_T, *self.levels(self.times))

    def mean(self, latent: Tensor, condition: Tensor, time: Tensor, next_time: Tensor, carry: Tensor) -> Tensor:
        """[n, D] float64: mean of the next latent of each row.

        latent [n, D]; condition, time, next_time, carry [n], the last as `noise_scales` gives it
        """
        data, noise = self.parts(latent, condition, time)
        return self.levels(next_time)[0][:, None] * data + carry[:, None] * noise

    def parts(self, latent: Tensor, condition: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        """Data and noise [n, D] float64 that the network says the latents are made of."""
        output = self.output(latent, condition, time)
        return parts_of(self.kind, output, latent.to(torch.float64), *self.levels(time))

    def errors(self, latent: Tensor, condition: Tensor, time: Tensor, data: Tensor) -> tuple[Tensor, Tensor]:
        """The network's output on re-noised data, and its target, [n, D] float64 each.

        latent [n, D] = alpha data + sigma noise, at `time` [n]
        """
        alpha, sigma = self.levels(time)
        data = data.to(torch.float64)
        noise = (latent.to(torch.float64) - alpha[:, None] * data) / sigma[:, None]
        return self.output(latent, condition, time), target_of(self.kind, data, noise, alpha, sigma)

    def error_scale(self, time: Tensor) -> Tensor:
        """Factor [n] by which an error of the network's output is one of the data that it implies."""
        alpha, sigma = self.levels(time)
        return {"flow": sigma, "epsilon": sigma / alpha, "v_prediction": sigma, "sample": torch.ones_like(sigma)}[
            self.kind
        ]
