"""One token for every row: temperature, top-k and top-p, then the inverse of the cumulative distribution."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gxpo.protocols import Sampling

BLOCK = 128  # columns of a row that are summed together before one of them is looked for


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
    scaled = logits.to(torch.promote_types(logits.dtype, torch.float32))
    scaled = scaled if sampling.temperature == 1 else scaled / sampling.temperature
    if not sampling.truncated_support:
        place, logprob = _invert(scaled, uniform)
        return Drawn(place, logprob, None)
    support = support_of(scaled, sampling.top_k, sampling.top_p)
    inside = scaled.gather(1, support.clamp_min(0)).masked_fill(support < 0, -torch.inf)
    place, logprob = _invert(inside, uniform)
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


def _invert(scaled: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Columns drawn from softmax(scaled) [n, V] by cumulative probability, and their log-probabilities (float64).

    Probabilities are summed in float64, first by blocks of columns, so that one block of a row is looked through.
    """
    highest = scaled.amax(1, keepdim=True)
    raised = (scaled - highest).exp_()
    totals = _by_block(raised)
    cumulative = totals.cumsum(1)
    target = (uniform.to(cumulative) * cumulative[:, -1])[:, None]
    block = _first_above(cumulative, target)
    before = cumulative.gather(1, block) - totals.gather(1, block)
    column = block * BLOCK + torch.arange(BLOCK, device=block.device)
    inside = raised.gather(1, column.clamp_max(raised.shape[1] - 1)).to(torch.float64)
    place = _first_above(inside.masked_fill_(column >= raised.shape[1], 0).cumsum(1), target - before)
    token = block * BLOCK + place
    logprob = (scaled.gather(1, token).to(torch.float64) - highest) - cumulative[:, -1:].log()
    return token.squeeze(1), logprob.squeeze(1)


def _by_block(raised: Tensor) -> Tensor:
    """[n, blocks] float64 sums of BLOCK columns each; the last may have fewer."""
    whole = raised.shape[1] // BLOCK
    sums = raised[:, : whole * BLOCK].unflatten(1, (whole, BLOCK)).sum(2, dtype=torch.float64) if whole else None
    rest = raised[:, whole * BLOCK :].sum(1, keepdim=True, dtype=torch.float64) if raised.shape[1] % BLOCK else None
    return torch.cat([x for x in (sums, rest) if x is not None], 1)


def _first_above(cumulative: Tensor, target: Tensor) -> Tensor:
    """[n, 1] the first column whose cumulative sum exceeds the target; at most the last that adds anything."""
    last = (cumulative < cumulative[:, -1:]).sum(1, keepdim=True)
    return torch.minimum(torch.searchsorted(cumulative, target, right=True), last)
