"""Decoding of soft thinking: steps feed mixtures of likely tokens until a closing text; then tokens are sampled."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gxpo.base.devices import need_float64
from gxpo.models.decoder.soft import FAINT, gumbel, log_density, mixed_embeddings, mixture
from gxpo.parts.protocols import Completion, SoftSampling
from gxpo.sampling.engines.decode import KEEP_UNTIL, Actions, Batch
from gxpo.sampling.engines.draws import draw, support_of
from gxpo.sampling.engines.stopping import Stopping


@dataclass
class _SoftStep:
    """Soft step of m rows: allowed ids, y (nan where negligible), weights [m, K]; likeliest id, log-density [m]."""

    support: Tensor
    y: Tensor
    weight: Tensor
    token: Tensor
    density: Tensor


def soft_step(logits: Tensor, uniform: Tensor, sampling: SoftSampling) -> _SoftStep:
    """p = softmax(logits / temperature) on its top-k/top-p support, y = log p + Gumbel noise, softmax(y / tau).

    logits [m, V]; uniform [m, K] float64, K = `soft_top_k`. At temperature 0: p at temperature 1, and no noise.
    """
    scores = logits.to(torch.promote_types(logits.dtype, torch.float32)) / (sampling.temperature or 1.0)
    support = support_of(scores, sampling.soft_top_k, sampling.soft_top_p)
    support = torch.nn.functional.pad(support, (0, uniform.shape[1] - support.shape[1]), value=-1)
    support_logits = scores.gather(1, support.clamp_min(0)).masked_fill(support < 0, -torch.inf)
    logprob = support_logits.double().log_softmax(1)
    y = logprob + (gumbel(uniform) if sampling.temperature else 0.0)
    # Faint ids are mixed in but not counted in the density; the likeliest always is, or a row might count none.
    is_counted = (logprob > FAINT) | (logprob == logprob.amax(1, keepdim=True))
    counted_y = torch.where(is_counted, y, torch.nan)
    token = support.gather(1, y.argmax(1, keepdim=True)).squeeze(1)
    return _SoftStep(
        support, counted_y, mixture(y, sampling.mixing_temperature), token, log_density(counted_y, logprob)
    )


def soft_decode(
    state: Batch,
    streams: np.ndarray,
    sampling: SoftSampling,
    stopping: Stopping,
    thinking_end: Stopping,
    embedding: Any,
    policy_version: int,
) -> list[Completion]:
    """Decode soft steps, then tokens, until every row is done or out of uniforms; streams [n, longest, 1 + K] float64.

    A soft step is stored as its likeliest id, with the noise's density as log-prob, the support, and the extras
    "soft_y" and "soft_weight" [tokens, K], which are nan at ordinary tokens. `thinking_end` detects the closing
    text, after which a row's tokens are sampled.
    """
    n, longest, _ = streams.shape
    need_float64(state.logits.device, "soft thinking")
    uniform = torch.from_numpy(streams).to(state.logits.device)
    actions, samples, thinking = Actions.empty(n, longest), torch.arange(n), torch.ones(n, dtype=torch.bool)
    supports: list[tuple[Tensor, Tensor]] = []
    noise = torch.full((2, n, longest, sampling.soft_top_k), torch.nan, dtype=torch.float64)  # y, weight
    for step in range(longest):
        # Rows may be at different stages, so both kinds of step are computed and each row takes its own; uniform 0 of a
        # step is for a token, the others are for the noise.
        soft = soft_step(state.logits, uniform[samples, step, 1:], sampling)
        draws = draw(state.logits, uniform[samples, step, 0], sampling)
        row_thinks = thinking[samples]
        token = torch.where(row_thinks, soft.token.cpu(), draws.token.cpu())
        is_running = ~actions.is_stopped[samples]
        actions.tokens[samples, step] = token
        actions.logprobs[samples, step] = torch.where(row_thinks, soft.density.cpu(), draws.logprob.cpu())
        actions.length[samples[is_running]] = step + 1
        noise[0, samples[row_thinks], step] = soft.y.cpu()[row_thinks]
        noise[1, samples[row_thinks], step] = soft.weight.cpu()[row_thinks]
        supports.append((samples[row_thinks], soft.support.cpu()[row_thinks]))
        if draws.support is not None:
            supports.append((samples[~row_thinks], draws.support.cpu()[~row_thinks]))
        supports.append((torch.tensor([step]), torch.empty(0)))  # marks the end of the step for `_by_step`
        history = actions.tokens[samples, : step + 1]
        actions.is_stopped[samples] |= stopping.is_done(token, history)
        thinking[samples] &= ~thinking_end.is_done(token, history)
        is_running = ~actions.is_stopped[samples]
        if step + 1 == longest or not bool(is_running.any()):
            break
        # Finished rows go in bulk: selecting rows copies the caches, which would cost more than it saves every token.
        ids, weight = soft.support, soft.weight
        if int(is_running.sum()) <= KEEP_UNTIL * samples.numel():
            running_rows = is_running.nonzero().squeeze(1)
            device_rows = running_rows.to(uniform.device)
            samples, token, row_thinks, state = (
                samples[running_rows],
                token[running_rows],
                row_thinks[running_rows],
                state.select(device_rows),
            )
            ids, weight = ids[device_rows], weight[device_rows]
        # The embedding of a thinking row's next input is the mixture; other rows get their token's own.
        rows = row_thinks.nonzero().squeeze(1).to(uniform.device)
        with mixed_embeddings(embedding, rows, ids[rows], weight[rows]):
            state = state.advance(token.to(uniform.device))
    return _completions(actions, _by_step(supports, n, longest, sampling.soft_top_k), noise, policy_version)


def _by_step(step_supports: list[tuple[Tensor, Tensor]], n: int, longest: int, min_width: int) -> Tensor:
    """Gather supports of all steps into [n, longest, K] allowed ids, padded with -1."""
    width = max([min_width, *(ids.shape[1] for _, ids in step_supports if ids.dim() == 2)])
    support, step = torch.full((n, longest, width), -1), 0
    for samples, ids in step_supports:
        if ids.dim() == 1:
            step = int(samples[0]) + 1
        else:
            support[samples, step, : ids.shape[1]] = ids
    return support


def _completions(actions: Actions, support: Tensor, noise: Tensor, policy_version: int) -> list[Completion]:
    width = support.shape[2]
    noise = torch.nn.functional.pad(noise, (0, width - noise.shape[3]), value=torch.nan)
    out = []
    for i, completion in enumerate(actions.completions(policy_version)):
        size = len(completion.tokens)
        extras = {name: noise[k, i, :size].numpy() for k, name in enumerate(("soft_y", "soft_weight"))}
        out.append(replace(completion, support=support[i, :size].numpy(), extras=extras))
    return out
