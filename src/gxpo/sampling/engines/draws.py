"""Draws of tokens: keyed random numbers, temperature, top-k and top-p, inverse CDF, the likeliest ids.

A sample's random numbers depend on the key of its stream, never on what else is in the batch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gxpo.parts.protocols import Sampling, StreamKey

BLOCK = 128  # columns of a row that are summed together before the drawn one is searched


def generator(key: StreamKey) -> np.random.Generator:
    """Philox generator keyed by the 128-bit blake2b hash of a stream's key."""
    name = json.dumps([key.seed, key.step, key.task, key.attempt, list(key.path), key.turn])
    digest = hashlib.blake2b(name.encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=np.frombuffer(digest, dtype="<u8")))


def uniforms(keys: Sequence[StreamKey], length: int) -> np.ndarray:
    """Uniforms float64 [len(keys), length] in [0, 1); a longer stream of the same key begins with the shorter one.

    >>> a = uniforms([StreamKey(seed=0, step=3, task="gsm8k/17", attempt=1)], 2)
    >>> b = uniforms([StreamKey(seed=0, step=3, task="gsm8k/17", attempt=1)], 5)
    >>> bool((a == b[:, :2]).all())
    True
    """
    out = np.empty((len(keys), length), dtype=np.float64)
    for row, key in zip(out, keys, strict=True):
        generator(key).random(out=row)
    return out


class Draws(NamedTuple):
    """Draws: token [n] int64, logprob [n] float64, support [n, K] int64 padded with -1 (None: whole vocabulary), and
    `likeliest_of` the distribution that was drawn from (None: not asked for)."""

    token: Tensor
    logprob: Tensor
    support: Tensor | None
    likeliest: Tensor | None = None


def likeliest_of(scores: Tensor, k: int, support: Tensor | None = None) -> Tensor:
    """[n, 2K + 1] float64: the K likeliest ids of softmax(scaled), as numbers, their log-probs, and that of all other
    ids together. K is `k`, or the size of the vocabulary if that is less.

    scaled   [n, V] logits over temperature, or [n, A] of the ids in `support` (-inf: padding)
    support  [n, A] allowed ids, padded with -1; fewer than `k` leave ids of -1, with log-prob -inf

    >>> likeliest_of(torch.tensor([[0.0, 2.0, 1.0]]), 2).exp().log().round(decimals=4).tolist()[0][2:]
    [-0.4076, -1.4076, -2.4076]
    """
    logprob = scores.to(torch.float64).log_softmax(1)
    top_logprob, column = logprob.topk(min(k, logprob.shape[1]), 1)
    rest_logprob = logprob.scatter(1, column, -torch.inf).logsumexp(1, keepdim=True)
    ids = column if support is None else support.gather(1, column)
    # of a support, every row has the same width whatever its step allowed: `k`
    if support is not None:
        padding = (0, k - ids.shape[1])
        ids = torch.nn.functional.pad(ids, padding, value=-1)
        top_logprob = torch.nn.functional.pad(top_logprob, padding, value=-torch.inf)
    return torch.cat([ids.to(torch.float64), top_logprob.masked_fill(ids < 0, -torch.inf), rest_logprob], 1)


def draw(logits: Tensor, uniform: Tensor, sampling: Sampling, likeliest: int = 0) -> Draws:
    """Sample from softmax(logits / temperature) restricted to its support, with the log-prob under that distribution.

    logits [n, V]; uniform [n] float64 in [0, 1). The token is the first, in order of ids, at which the cumulative
    probability exceeds `uniform`; the order of ids (not of probabilities) keeps a draw from changing when two nearly
    equal logits change places by rounding. Temperature 0 takes the most likely token, whose log-probability is 0.
    `likeliest`: give the distribution's so many likeliest ids, too; 0: none.
    """
    if uniform.shape != logits.shape[:1]:
        raise ValueError(f"uniform {tuple(uniform.shape)} must be [n] for logits {tuple(logits.shape)}")
    if sampling.temperature == 0:
        token = logits.argmax(-1)
        return Draws(token, torch.zeros(token.shape, dtype=torch.float64, device=token.device), None)
    # The log-prob must be of the distribution that is drawn from, so it is taken after temperature and support.
    scores = logits.to(torch.promote_types(logits.dtype, torch.float32))
    scores = scores if sampling.temperature == 1 else scores / sampling.temperature
    if sampling.top_k == 0 and sampling.top_p == 1:
        top = likeliest_of(scores, likeliest) if likeliest else None
        column, logprob = inverse_cdf(scores, uniform)
        return Draws(column, logprob, None, top)
    support = support_of(scores, sampling.top_k, sampling.top_p)
    top = (
        likeliest_of(scores_in_support(scores, support), min(likeliest, scores.shape[1]), support)
        if likeliest
        else None
    )
    return Draws(*draw_within(scores, support, uniform), support, top)


def draw_within(scores: Tensor, support: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Draw from softmax(scaled [n, V]) within a support [n, K], padded with -1; return tokens and log-probs."""
    column, logprob = inverse_cdf(scores_in_support(scores, support), uniform)
    return support.gather(1, column[:, None]).squeeze(1), logprob


def scores_in_support(scores: Tensor, support: Tensor) -> Tensor:
    """[n, K] logits of the ids in a support, -inf at its padding."""
    return scores.gather(1, support.clamp_min(0)).masked_fill(support < 0, -torch.inf)


def support_of(scores: Tensor, top_k: int, top_p: float) -> Tensor:
    """Ids [n, K] of the top-k, then top-p support, in ascending order, padded with -1.

    scaled [n, V]: logits over temperature. top-p keeps the fewest most likely ids whose probabilities reach `top_p`
    (Holtzman et al., 2020, section 3.1), always at least one.
    """
    n, size = scores.shape
    top_logits, ids = scores.topk(min(top_k, size) if top_k > 0 else size, dim=-1)
    if top_p < 1.0:
        p = top_logits.softmax(-1)
        ids = ids.masked_fill(p.cumsum(-1) - p >= top_p, size)
    ids = ids.sort(-1).values
    # columns that no row uses are cut off, except where the host would wait for a device to save few of them
    if top_k == 0 or scores.device.type == "cpu":
        ids = ids[:, : int((ids < size).sum(-1).max()) if n else 0]
    return ids.masked_fill(ids == size, -1)


def inverse_cdf(scores: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Draw columns from softmax(scaled) [n, V] by inverse CDF; return them with their log-probabilities (float64).

    Probabilities are summed in float64, by blocks of columns first, so that only one block of a row is searched.
    """
    max_logit = scores.amax(1, keepdim=True)
    z = scores - max_logit
    # Unnormalised probabilities; the target is scaled by their sum instead of dividing each of them.
    if z.shape[1] <= BLOCK:
        cumulative = z.exp().cumsum(1, dtype=torch.float64)
        total = cumulative[:, -1:]
        # A uniform below 1 times the sum is below the sum in float64, too, so that some column is above the target.
        token = torch.searchsorted(cumulative, uniform.to(cumulative)[:, None] * total, right=True)
        token.clamp_max_(z.shape[1] - 1)
        return token.squeeze(1), (z.gather(1, token).to(torch.float64) - total.log()).squeeze(1)
    mass = z.exp_()
    block_mass = _by_block(mass)
    cumulative = block_mass.cumsum(1)
    target = (uniform.to(cumulative) * cumulative[:, -1])[:, None]
    block = _first_above(cumulative, target)
    # Within the block that holds the target, only what the blocks before it leave over is searched for.
    before = cumulative.gather(1, block) - block_mass.gather(1, block)
    column = block * BLOCK + torch.arange(BLOCK, device=block.device)
    columns_mass = mass.gather(1, column.clamp_max(mass.shape[1] - 1)).to(torch.float64)
    offset = _first_above(columns_mass.masked_fill_(column >= mass.shape[1], 0).cumsum(1), target - before)
    token = block * BLOCK + offset
    logprob = (scores.gather(1, token).to(torch.float64) - max_logit) - cumulative[:, -1:].log()
    return token.squeeze(1), logprob.squeeze(1)


def _by_block(mass: Tensor) -> Tensor:
    """Sum BLOCK columns each, [n, blocks] float64; the last block may have fewer."""
    full_blocks = mass.shape[1] // BLOCK
    sums = (
        mass[:, : full_blocks * BLOCK].unflatten(1, (full_blocks, BLOCK)).sum(2, dtype=torch.float64)
        if full_blocks
        else None
    )
    last_sum = (
        mass[:, full_blocks * BLOCK :].sum(1, keepdim=True, dtype=torch.float64) if mass.shape[1] % BLOCK else None
    )
    return torch.cat([x for x in (sums, last_sum) if x is not None], 1)


def _first_above(cumulative: Tensor, target: Tensor) -> Tensor:
    """First column [n, 1] whose cumulative sum exceeds the target; at most the last with any probability."""
    last = (cumulative < cumulative[:, -1:]).sum(1, keepdim=True)
    return torch.minimum(torch.searchsorted(cumulative, target, right=True), last)
