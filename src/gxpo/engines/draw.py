"""One token for every row: temperature, top-k and top-p, then the inverse of the cumulative distribution."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gxpo.protocols import Sampling


class Drawn(NamedTuple):
    """token [n] int64, logprob [n] float64, support [n, K] int64 padded with -1 (None: the whole vocabulary)."""

    token: Tensor
    logprob: Tensor
    support: Tensor | None


def draw(logits: Tensor, uniform: Tensor, sampling: Sampling) -> Drawn:
    """Draws from softmax(logits / temperature) restricted to its support, with the log-probability under just that.

    logits [n, V]; uniform [n] float64 in [0, 1). The token is the first, in order of ids, at which the cumulative
    probability exceeds `uniform`; the order of ids (not of probabilities) keeps a draw from changing when two nearly
    equal logits change places by rounding. Temperature 0 takes the most likely token, whose log-probability is 0.
    """
    if uniform.shape != logits.shape[:1]:
        raise ValueError(f"uniform {tuple(uniform.shape)} must be [n] for logits {tuple(logits.shape)}")
    if sampling.temperature == 0:
        token = logits.argmax(-1)
        return Drawn(token, torch.zeros(token.shape, dtype=torch.float64, device=token.device), None)
    scaled = logits.to(torch.float64) / sampling.temperature
    if not sampling.truncated_support:
        place, logprob = _invert(scaled.log_softmax(-1), uniform)
        return Drawn(place, logprob, None)
    support = support_of(scaled, sampling.top_k, sampling.top_p)
    inside = scaled.gather(1, support.clamp_min(0)).masked_fill(support < 0, -torch.inf)
    place, logprob = _invert(inside.log_softmax(-1), uniform)
    return Drawn(support.gather(1, place[:, None]).squeeze(1), logprob, support)


def support_of(scaled: Tensor, top_k: int, top_p: float) -> Tensor:
    """[n, K] ids allowed by top-k, then by top-p on what top-k left, in ascending order, padded with -1.

    scaled [n, V]: logits over temperature. top-p keeps the fewest most likely ids whose probabilities reach `top_p`
    (Holtzman et al., 2020, section 3.1), always at least one.
    """
    n, size = scaled.shape
    kept, ids = scaled.topk(min(top_k, size) if top_k > 0 else size, dim=-1)
    if top_p < 1.0:
        p = kept.softmax(-1)
        ids = ids.masked_fill(p.cumsum(-1) - p >= top_p, size)
    ids = ids.sort(-1).values
    widest = int((ids < size).sum(-1).max()) if n else 0
    ids = ids[:, :widest]
    return ids.masked_fill(ids == size, -1)


def _invert(logprob: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Columns drawn from rows of log-probabilities [n, V], and their log-probabilities."""
    cumulative = logprob.exp().cumsum(-1)
    target = (uniform.to(cumulative) * cumulative[:, -1])[:, None]
    place = torch.searchsorted(cumulative, target, right=True).clamp_max(logprob.shape[1] - 1)
    return place.squeeze(1), logprob.gather(1, place).squeeze(1)
