"""Soft thinking: each step is a mixture of likely tokens until a closing text; then tokens are sampled."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gxpo.models.decoder.soft import FAINT, fed, gumbel, log_density, mixture
from gxpo.parts.protocols import Completion, SoftSampling
from gxpo.sampling.engines.decode import KEEP_UNTIL, Actions, Batch, Stopping, draw, support_of


@dataclass
class _Soft:
    """Of m rows: allowed ids, y (nan where not counted), weights [m, K]; the likeliest of y, its density [m]."""

    support: Tensor
    y: Tensor
    weight: Tensor
    token: Tensor
    density: Tensor


def soft_step(logits: Tensor, uniform: Tensor, sampling: SoftSampling) -> _Soft:
    """p = softmax(logits / temperature) on its top-k/top-p support, y = log p + Gumbel noise, softmax(y / tau).

    logits [m, V]; uniform [m, K] float64, K = `soft_top_k`. At temperature 0: p at temperature 1, and no noise.
    """
    scaled = logits.to(torch.promote_types(logits.dtype, torch.float32)) / (sampling.temperature or 1.0)
    support = support_of(scaled, sampling.soft_top_k, sampling.soft_top_p)
    support = torch.nn.functional.pad(support, (0, uniform.shape[1] - support.shape[1]), value=-1)
    inside = scaled.gather(1, support.clamp_min(0)).masked_fill(support < 0, -torch.inf)
    logprob = inside.double().log_softmax(1)
    y = logprob + (gumbel(uniform) if sampling.temperature else 0.0)
    counted = (logprob > FAINT) | (logprob == logprob.amax(1, keepdim=True))
    seen = torch.where(counted, y, torch.nan)
    token = support.gather(1, y.argmax(1, keepdim=True)).squeeze(1)
    return _Soft(support, seen, mixture(y, sampling.mixing_temperature), token, log_density(seen, logprob))


def soft_decode(
    state: Batch,
    streams: np.ndarray,
    sampling: SoftSampling,
    stopping: Stopping,
    closed: Stopping,
    embedding: Any,
    policy_version: int,
) -> list[Completion]:
    """Decode until every row is done or out of uniforms; streams [n, longest, 1 + K] float64.

    A soft step is stored as its likeliest id, with the noise's density as log-prob, the support, and the extras
    "soft_y" and "soft_weight" [tokens, K], which are nan at ordinary tokens. `closed` says after which token a row's
    thinking is over.
    """
    n, longest, _ = streams.shape
    uniform = torch.from_numpy(streams).to(state.logits.device)
    out, samples, thinking = Actions.empty(n, longest), torch.arange(n), torch.ones(n, dtype=torch.bool)
    supports: list[tuple[Tensor, Tensor]] = []
    noise = torch.full((2, n, longest, sampling.soft_top_k), torch.nan, dtype=torch.float64)  # y, weight
    for step in range(longest):
        soft = soft_step(state.logits, uniform[samples, step, 1:], sampling)
        drawn = draw(state.logits, uniform[samples, step, 0], sampling)
        thinks = thinking[samples]
        token = torch.where(thinks, soft.token.cpu(), drawn.token.cpu())
        running = ~out.stopped[samples]
        out.tokens[samples, step] = token
        out.logprobs[samples, step] = torch.where(thinks, soft.density.cpu(), drawn.logprob.cpu())
        out.length[samples[running]] = step + 1
        noise[0, samples[thinks], step] = soft.y.cpu()[thinks]
        noise[1, samples[thinks], step] = soft.weight.cpu()[thinks]
        supports.append((samples[thinks], soft.support.cpu()[thinks]))
        if drawn.support is not None:
            supports.append((samples[~thinks], drawn.support.cpu()[~thinks]))
        supports.append((torch.tensor([step]), torch.empty(0)))  # the end of the step
        history = out.tokens[samples, : step + 1]
        out.stopped[samples] |= stopping.done(token, history)
        thinking[samples] &= ~closed.done(token, history)
        running = ~out.stopped[samples]
        if step + 1 == longest or not bool(running.any()):
            break
        ids, weight = soft.support, soft.weight
        if int(running.sum()) <= KEEP_UNTIL * samples.numel():
            kept = running.nonzero().squeeze(1)
            at = kept.to(uniform.device)
            samples, token, thinks, state = samples[kept], token[kept], thinks[kept], state.select(at)
            ids, weight = ids[at], weight[at]
        rows = thinks.nonzero().squeeze(1).to(uniform.device)
        with fed(embedding, rows, ids[rows], weight[rows]):
            state = state.advance(token.to(uniform.device))
    return _completions(out, _by_step(supports, n, longest, sampling.soft_top_k), noise, policy_version)


def _by_step(found: list[tuple[Tensor, Tensor]], n: int, longest: int, least: int) -> Tensor:
    """[n, longest, K] allowed ids, -1 elsewhere."""
    widest = max([least, *(ids.shape[1] for _, ids in found if ids.dim() == 2)])
    out, step = torch.full((n, longest, widest), -1), 0
    for samples, ids in found:
        if ids.dim() == 1:
            step = int(samples[0]) + 1
        else:
            out[samples, step, : ids.shape[1]] = ids
    return out


def _completions(out: Actions, support: Tensor, noise: Tensor, policy_version: int) -> list[Completion]:
    width = support.shape[2]
    noise = torch.nn.functional.pad(noise, (0, width - noise.shape[3]), value=torch.nan)
    made = []
    for i, completion in enumerate(out.completions(policy_version)):
        size = len(completion.tokens)
        extras = {name: noise[k, i, :size].numpy() for k, name in enumerate(("soft_y", "soft_weight"))}
        made.append(replace(completion, support=support[i, :size].numpy(), extras=extras))
    return made
