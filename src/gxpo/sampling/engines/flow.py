"""Flow engine: denoising steps of an SDE or ODE sampler in place of tokens, with latents as payload."""

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

LATENT = -1  # the id of everything that is a latent
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

    A request's prompt is a condition, and behind it an id -1 for each latent that the sample continues from, with their
    values under `extras["latent"]` (a row for each id of the prompt). An action is the initial noise, unless the
    prompt has one, and then one step after the other until sigma is 0 ("stop") or `max_new_tokens` are there
    ("length"): ids -1, with extras

    latent [n, D]     what the sample is after the step, in the model's dtype
    time [n]          the noise level that it is then at
    noise_scale [n]   the step's standard deviation: 1 for the initial noise, 0 for a step of the ODE

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
        """Does nothing: there are no caches."""

    def sample(self, requests: Sequence[Request], sampling: Sampling) -> list[list[Completion]]:
        """Sample one completion for every stream of every request, in order."""
        if sampling.truncated_support or sampling.temperature < 0 or sampling.max_new_tokens < 1:
            raise ModelError(
                "a flow is sampled with temperature >= 0 (its noise level), max_new_tokens >= 1, top_k 0 and top_p 1, "
                f"not {sampling}"
            )
        rows = [(self._start(request), key) for request in requests for key in request.streams]
        done: list[Completion] = []
        with torch.no_grad(), memory_is_short("denoising", "sampling.batch_rows"):
            for begin in range(0, len(rows), self.batch_rows):
                done += self._batch(rows[begin : begin + self.batch_rows], sampling)
        found = iter(done)
        return [[next(found) for _ in request.streams] for request in requests]

    def _start(self, request: Request) -> tuple[int, Tensor | None, int]:
        """(condition, the latent that is gone on from, how many latents there are)."""
        if not request.prompt or not 0 <= request.prompt[0] < self.model.conditions:
            raise ModelError(
                f"a flow's prompt begins with a condition below {self.model.conditions}, not {request.prompt[:1]}"
            )
        behind = request.prompt[1:]
        if any(token != LATENT for token in behind) or len(behind) > len(self.model.sigmas) - 1:
            raise ModelError(
                f"behind a flow's condition stand at most {len(self.model.sigmas) - 1} latents (ids -1), not {behind}"
            )
        if not behind:
            return request.prompt[0], None, 0
        latents = request.extras.get("latent")
        if latents is None or np.shape(latents) != (len(request.prompt), self.model.dimension):
            raise ModelError(
                f"a prompt with {len(behind)} latents needs extras['latent'] of shape "
                f"{(len(request.prompt), self.model.dimension)}"
            )
        return request.prompt[0], torch.as_tensor(np.asarray(latents[-1])), len(behind)

    def _batch(
        self, rows: Sequence[tuple[tuple[int, Tensor | None, int], Any]], sampling: Sampling
    ) -> list[Completion]:
        starts, model, size = [start for start, _ in rows], self.model, self.model.dimension
        sigmas, scales = model.sigmas.to(self.device), model.noise_scales(sampling.temperature).to(self.device)
        n, longest = len(rows), min(sampling.max_new_tokens, len(sigmas))
        noise = gaussians(uniforms([key for _, key in rows], longest * size)).reshape(n, longest, size).to(self.device)
        condition = torch.tensor([c for c, _, _ in starts], device=self.device)
        had = torch.tensor([count for _, _, count in starts], device=self.device)
        latent = torch.zeros(n, size, dtype=model.dtype, device=self.device)
        for i, (_, given, _) in enumerate(starts):
            if given is not None:
                latent[i] = given.to(latent)
        out = {"latent": torch.zeros(n, longest, size, dtype=model.dtype, device=self.device)}
        out |= {x: torch.zeros(n, longest, dtype=torch.float64, device=self.device) for x in ("time", "noise_scale")}
        logprob = torch.zeros(n, longest, dtype=torch.float64, device=self.device)
        for j in range(longest):
            going = (had + j < len(sigmas)).nonzero().squeeze(1)
            if not len(going):
                break
            place = had[going] + j  # of the latent that is made, in the schedule
            fresh, before = place == 0, (place - 1).clamp_min(0)
            scale = torch.where(fresh, 1.0, scales[before])
            mean = torch.zeros(len(going), size, dtype=torch.float64, device=self.device)
            old = (~fresh).nonzero().squeeze(1)
            if len(old):
                k, row = before[old], going[old]
                mean[old] = model.mean(latent[row], condition[row], sigmas[k], sigmas[k + 1], scale[old])
            made = (mean + scale[:, None] * noise[going, j]).to(latent)
            latent[going] = made
            out["latent"][going, j], out["time"][going, j], out["noise_scale"][going, j] = made, sigmas[place], scale
            logprob[going, j] = model.log_density(made.to(torch.float64), mean, scale)
        length = (len(sigmas) - had).clamp_max(longest).tolist()
        finished = (had + longest >= len(sigmas)).tolist()
        host = {name: x.cpu().numpy() for name, x in out.items()}
        return [
            Completion(
                tokens=[LATENT] * length[i],
                logprobs=logprob[i, : length[i]].tolist(),
                finish="stop" if finished[i] else "length",
                policy_version=self.policy_version,
                extras={name: x[i, : length[i]].copy() for name, x in host.items()},
            )
            for i in range(n)
        ]
