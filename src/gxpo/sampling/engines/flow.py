"""Flow engine: samples denoising steps of an SDE or ODE in place of tokens, with latents as payload."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gxpo.base.errors import ModelError
from gxpo.base.runtime import memory_is_short
from gxpo.parts.protocols import Completion, Request, Sampling
from gxpo.sampling.engines.decode import uniforms

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

    model  the policy (`models.flow.FlowModel`): `sigmas` [T + 1], `noise_scales(level)`, `mean`, `log_density`,
           `dimension`, `conditions` and `dtype`

    A request's prompt is a condition, then an id -1 for each latent that the sample continues from, with their values
    in `extras["latent"]` (a row for each id of the prompt). An action is the initial noise, unless the prompt has one,
    and then one step after the other until sigma is 0 ("stop") or `max_new_tokens` is reached ("length"): ids -1, with
    extras

    latent [n, D]     the sample after the step, in the model's dtype
    time [n]          its noise level after the step
    noise_scale [n]   standard deviation of the step: 1 for the initial noise, 0 for a step of the ODE

    `temperature` is the noise level of the SDE; 0 is the ODE, whose steps have log-density 0 (nothing is drawn). Log-
    densities are means over the dimensions. Each token has its own D numbers of its stream, independent of its step.

    prefilled_tokens and reused_tokens stay 0: a step needs the latent before it and nothing else.
    """

    def __init__(self, model: Any, *, device: str | torch.device = "cpu", batch_rows: int = 1 << 16) -> None:
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
        if any(token != LATENT for token in latent_ids) or len(latent_ids) > len(self.model.sigmas) - 1:
            raise ModelError(
                f"a flow's prompt has at most {len(self.model.sigmas) - 1} latents (ids -1) after its condition, "
                f"not {latent_ids}"
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

    def _denoise(
        self, rows: Sequence[tuple[tuple[int, Tensor | None, int], Any]], sampling: Sampling
    ) -> list[Completion]:
        """Denoise these rows together, one step of all in each pass."""
        starts, model, size = [start for start, _ in rows], self.model, self.model.dimension
        sigmas, scales = model.sigmas.to(self.device), model.noise_scales(sampling.temperature).to(self.device)
        n, longest = len(rows), min(sampling.max_new_tokens, len(sigmas))
        # A stream gives D numbers for each step, so a sample's noise does not depend on the rest of the batch.
        noise = gaussians(uniforms([key for _, key in rows], longest * size)).reshape(n, longest, size).to(self.device)
        condition = torch.tensor([c for c, _, _ in starts], device=self.device)
        n_prompt_latents = torch.tensor([count for _, _, count in starts], device=self.device)
        latent = torch.zeros(n, size, dtype=model.dtype, device=self.device)
        for i, (_, prompt_latent, _) in enumerate(starts):
            if prompt_latent is not None:
                latent[i] = prompt_latent.to(latent)
        out = {"latent": torch.zeros(n, longest, size, dtype=model.dtype, device=self.device)}
        out |= {x: torch.zeros(n, longest, dtype=torch.float64, device=self.device) for x in ("time", "noise_scale")}
        logprob = torch.zeros(n, longest, dtype=torch.float64, device=self.device)
        # Rows may continue from different latents: step j of a row is entry `schedule_index` of the schedule.
        for j in range(longest):
            active = (n_prompt_latents + j < len(sigmas)).nonzero().squeeze(1)
            if not len(active):
                break
            schedule_index = n_prompt_latents[active] + j  # of the latent that is made, in the schedule
            # The initial noise is a standard normal; every other entry is a step of the model from the one before.
            is_initial, previous = schedule_index == 0, (schedule_index - 1).clamp_min(0)
            scale = torch.where(is_initial, 1.0, scales[previous])
            mean = torch.zeros(len(active), size, dtype=torch.float64, device=self.device)
            stepped = (~is_initial).nonzero().squeeze(1)
            if len(stepped):
                k, row = previous[stepped], active[stepped]
                mean[stepped] = model.mean(latent[row], condition[row], sigmas[k], sigmas[k + 1], scale[stepped])
            new_latent = (mean + scale[:, None] * noise[active, j]).to(latent)
            latent[active] = new_latent
            out["latent"][active, j], out["time"][active, j], out["noise_scale"][active, j] = (
                new_latent,
                sigmas[schedule_index],
                scale,
            )
            logprob[active, j] = model.log_density(new_latent.to(torch.float64), mean, scale)
        length = (len(sigmas) - n_prompt_latents).clamp_max(longest).tolist()
        reaches_end = (n_prompt_latents + longest >= len(sigmas)).tolist()
        host = {name: x.cpu().numpy() for name, x in out.items()}
        logprob = logprob.cpu()  # together: each sample's own copy would wait for the device
        return [
            Completion(
                tokens=[LATENT] * length[i],
                logprobs=logprob[i, : length[i]].tolist(),
                finish="stop" if reaches_end[i] else "length",
                policy_version=self.policy_version,
                extras={name: x[i, : length[i]].copy() for name, x in host.items()},
            )
            for i in range(n)
        ]
