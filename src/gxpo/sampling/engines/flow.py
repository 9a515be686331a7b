"""Flow engine: samples denoising steps of an SDE or ODE in place of tokens, with latents as payload."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gxpo.base.devices import need_float64
from gxpo.base.errors import ModelError
from gxpo.base.media import PICTURES
from gxpo.base.runtime import memory_is_short
from gxpo.parts.protocols import Completion, DenoisingSampling, Request, Sampling
from gxpo.sampling.engines.draws import uniforms

LATENT = -1  # token id of every latent
SMALLEST = 2.0**-54  # half of the smallest uniform above 0


def gaussians(uniform: np.ndarray) -> Tensor:
    """Standard normals of the same shape, by the inverse normal CDF; float64 in, float64 out.

    >>> gaussians(np.array([0.5, 0.84134474606854])).round(decimals=6).tolist()
    [0.0, 1.0]
    """
    return torch.special.ndtri(torch.from_numpy(uniform).clamp_min(SMALLEST))


class FlowEngine:
    """Batched denoising with keyed noise and exact log-densities.

    model  the policy, a `gxpo.models.denoising.Denoiser`

    A request's prompt is a condition, then an id -1 for each latent that the sample continues from, with their values
    in `extras["latent"]` (a row for each id of the prompt). An action is the initial noise, unless the prompt has one,
    and then one step after the other until sigma is 0 ("stop") or `max_new_tokens` is reached ("length"): ids -1, with
    extras

    latent [n, D]     the sample after the step, in the model's dtype
    time [n]          its noise level after the step
    noise_scale [n]   standard deviation of the step: 1 for the initial noise, 0 for a step of the ODE
    noise_kept [n]    coefficient of the predicted noise in the step's mean; 0 for the initial noise

    `temperature` is the level of the noise; 0 is the ODE, whose steps have log-density 0 (nothing is drawn). Log-
    densities are means over the dimensions. Each token has its own D numbers of its stream, independent of its step.
    `DenoisingSampling` says which noise, in which steps, that one step of the ODE goes to the end (a look-ahead), or
    that samples are noised again.

    prefilled_tokens and reused_tokens stay 0: a step needs the latent before it and nothing else.
    """

    def __init__(self, model: Any, *, device: str | torch.device = "cpu", batch_rows: int = 1 << 16) -> None:
        need_float64(device, "a denoising model")
        self.device, self.batch_rows = torch.device(device), batch_rows
        self.model = model.to(self.device).eval()
        self.policy_version = 0
        self.prefilled_tokens = self.reused_tokens = 0

    def release(self, names: Sequence[str] | None = None) -> None:
        """Do nothing: there are no caches."""

    def sample(self, requests: Sequence[Request], sampling: Sampling) -> list[list[Completion]]:
        """Sample one completion for every stream of every request, in order."""
        if sampling.truncated_support or sampling.temperature < 0 or sampling.max_new_tokens < 1:
            raise ModelError(
                "a flow is sampled with temperature >= 0 (its noise level), max_new_tokens >= 1, top_k 0 and top_p 1, "
                f"not {sampling}"
            )
        if any(request.options is not None for request in requests):
            raise ModelError("a flow has no tokens, so that a request can have no options of them: leave them out")
        rows = [(self._start(request), key) for request in requests for key in request.streams]
        completions: list[Completion] = []
        with torch.no_grad(), memory_is_short("denoising", "sampling.batch_rows"):
            for begin in range(0, len(rows), self.batch_rows):
                completions += self._denoise(rows[begin : begin + self.batch_rows], sampling)
        remaining = iter(completions)
        return [[next(remaining) for _ in request.streams] for request in requests]

    def _start(self, request: Request) -> tuple[int, Tensor | None, int]:
        """Parse a prompt: (condition, last latent or None, number of latents)."""
        if not request.prompt or not 0 <= request.prompt[0] < self.model.conditions:
            raise ModelError(
                f"a flow's prompt begins with a condition below {self.model.conditions}, not {request.prompt[:1]}"
            )
        latent_ids = request.prompt[1:]
        if any(token != LATENT for token in latent_ids) or len(latent_ids) > self.model.steps:
            raise ModelError(
                f"a flow's prompt has at most {self.model.steps} latents (ids -1) after its condition, not {latent_ids}"
            )
        if not latent_ids:
            return request.prompt[0], None, 0
        latents = request.extras.get("latent")
        if latents is None or np.shape(latents) != (len(request.prompt), self.model.dimension):
            raise ModelError(
                f"a prompt with {len(latent_ids)} latents needs extras['latent'] of shape "
                f"{(len(request.prompt), self.model.dimension)}"
            )
        return request.prompt[0], torch.as_tensor(np.asarray(latents[-1])), len(latent_ids)

    def _noise(self, sampling: Sampling) -> tuple[Tensor, Tensor]:
        """Noise scale and carry (coefficient of the predicted noise) of each step, [T] and [T]."""
        options = {}
        if isinstance(sampling, DenoisingSampling):
            options = {name: getattr(sampling, name) for name in ("noise", "window", "begin", "end")}
        scales, carries = self.model.noise_scales(sampling.temperature, **options)
        return scales.to(self.device), carries.to(self.device)

    def _renoise(self, rows: Sequence[tuple[tuple[int, Tensor | None, int], Any]], step: int) -> list[Completion]:
        """Noise samples again, to the time of this step of the schedule: one latent each, whose law nobody asks for."""
        model, size = self.model, self.model.dimension
        sample = torch.stack([torch.zeros(size) if x is None else x for (_, x, _), _ in rows]).to(torch.float64)
        noise = gaussians(uniforms([key for _, key in rows], size)).reshape(len(rows), size)
        time = model.times[step : step + 1].to(torch.float64)
        alpha, sigma = model.levels(time)
        latent = (alpha * sample + sigma * noise).to(model.dtype).numpy()
        scalars = {"time": time.numpy(), "noise_scale": np.zeros(1), "noise_kept": np.zeros(1)}
        return [
            Completion([LATENT], [math.nan], "stop", None, self.policy_version, {"latent": x[None], **scalars})
            for x in latent
        ]

    def _denoise(
        self, rows: Sequence[tuple[tuple[int, Tensor | None, int], Any]], sampling: Sampling
    ) -> list[Completion]:
        """Denoise these rows together, one step of all in each pass."""
        if isinstance(sampling, DenoisingSampling) and sampling.renoised is not None:
            return self._renoise(rows, sampling.renoised)
        starts, model, size = [start for start, _ in rows], self.model, self.model.dimension
        times, (scales, carries) = model.times.to(self.device), self._noise(sampling)
        ahead = isinstance(sampling, DenoisingSampling) and sampling.ahead
        n, longest = len(rows), min(sampling.max_new_tokens, 1 if ahead else len(times))
        # A stream gives D numbers for each step, so a sample's noise does not depend on the rest of the batch.
        noise = gaussians(uniforms([key for _, key in rows], longest * size)).reshape(n, longest, size).to(self.device)
        condition = torch.tensor([c for c, _, _ in starts], device=self.device)
        n_prompt_latents = torch.tensor([count for _, _, count in starts], device=self.device)
        latent = torch.zeros(n, size, dtype=model.dtype, device=self.device)
        for i, (_, prompt_latent, _) in enumerate(starts):
            if prompt_latent is not None:
                latent[i] = prompt_latent.to(latent)
        # Rows may continue from different latents: step j of a row makes entry `entry_NL` of the schedule. The initial
        # noise, entry 0, is a standard normal; every other entry is a step of the model from the one before.
        entry_NL = (n_prompt_latents[:, None] + torch.arange(longest, device=self.device)).clamp_max(len(times) - 1)
        one = torch.ones(1, dtype=torch.float64, device=self.device)
        scale_NL, carry_NL = torch.cat([one, scales])[entry_NL], torch.cat([0 * one, carries])[entry_NL]
        time_NL = times[entry_NL].to(torch.float64)
        if ahead:  # one step of the ODE from wherever a row is
            scale_NL, carry_NL, time_NL = 0 * scale_NL, carries[-1] + 0 * carry_NL, times[-1] + 0 * time_NL
        out = {"latent": torch.zeros(n, longest, size, dtype=model.dtype, device=self.device)}
        out |= {"time": time_NL, "noise_scale": scale_NL, "noise_kept": carry_NL}
        logprob = torch.zeros(n, longest, dtype=torch.float64, device=self.device)
        for j in range(longest):
            active = (n_prompt_latents + j < len(times)).nonzero().squeeze(1)
            if not len(active):
                break
            scale, entry = scale_NL[active, j], entry_NL[active, j]
            mean = torch.zeros(len(active), size, dtype=torch.float64, device=self.device)
            stepped = entry.nonzero().squeeze(1)
            if len(stepped):
                row, now = active[stepped], times[entry[stepped] - 1]
                mean[stepped] = model.mean(latent[row], condition[row], now, time_NL[row, j], carry_NL[row, j])
            new_latent = (mean + scale[:, None] * noise[active, j]).to(latent)
            latent[active] = out["latent"][active, j] = new_latent
            logprob[active, j] = model.log_density(new_latent.to(torch.float64), mean, scale)
        length = (len(times) - n_prompt_latents).clamp_max(longest).tolist()
        reaches_end = ((n_prompt_latents + longest >= len(times)) | ahead).tolist()
        refs: list[str | None] = [None] * n
        if hasattr(model, "pictures") and any(reaches_end):
            done = [i for i in range(n) if reaches_end[i]]
            for i, pixels in zip(done, model.pictures(latent[done]), strict=True):
                refs[i] = PICTURES.put(pixels)
        host = {name: x.cpu().numpy() for name, x in out.items()}
        logprob = logprob.cpu()  # together: each sample's own copy would wait for the device
        return [
            Completion(
                tokens=[LATENT] * length[i],
                logprobs=logprob[i, : length[i]].tolist(),
                finish="stop" if reaches_end[i] else "length",
                policy_version=self.policy_version,
                extras={name: x[i, : length[i]].copy() for name, x in host.items()},
                picture=refs[i],
            )
            for i in range(n)
        ]
