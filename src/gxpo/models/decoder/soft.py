"""Soft tokens: a mixture of embeddings as the input of a step, and the density of its Gumbel noise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

LOW, HIGH = -1.5, 3.0  # bounds to which Gumbel noise is clamped
FAINT = -3.0  # log-probability (nats) up to which an id of the support is mixed in, but not counted in the density
MARGIN = 1e-4  # beyond the bounds, so that rounding does not decide whether noise at a bound has a gradient


def gumbel(uniform: Tensor) -> Tensor:
    """Gumbel noise -log(-log u), clamped to [-1.5, 3]; u in [0, 1)."""
    return (-(-uniform.log()).log()).clamp(LOW, HIGH)


def mixture(y: Tensor, temperature: float) -> Tensor:
    """[n, K] softmax(y / temperature): weights of the ids' embeddings; y is -inf where there is no id.

    >>> p, g = torch.tensor([[0.6, 0.3, 0.1]], dtype=torch.float64), torch.tensor([[0.5, -0.2, 1.1]])
    >>> [round(x, 6) for x in mixture(p.log() + g, 0.1)[0].tolist()]
    [0.999992, 1e-06, 7e-06]
    """
    return (y / temperature).softmax(-1)


def log_density(y: Tensor, logprob: Tensor) -> Tensor:
    """[n] Gumbel log-density of the noise that turns log p into y: mean over the counted ids of -g - exp(-g), g = y -
    log p clamped to [-1.5, 3].

    y, logprob   [n, K]; y is nan at ids that are not counted, -inf or nan where there is none

    d/d(log p) is 1 - exp(-g) over the number of counted ids, 0 where g is beyond a bound. The mean, not the sum, which
    would be the density of independent noise. Source: SofT-GRPO, arXiv 2511.06411, reference code.
    """
    is_counted = y.isfinite()
    g = (torch.where(is_counted, y, 0.0) - torch.where(is_counted, logprob, 0.0)).clamp(LOW - MARGIN, HIGH + MARGIN)
    return torch.where(is_counted, -g - (-g).exp(), 0.0).sum(-1) / is_counted.sum(-1)


@contextmanager
def mixed_embeddings(embedding: Any, rows: Tensor, ids: Tensor, weight: Tensor) -> Iterator[None]:
    """Context manager: the embedding gives sum_k weight_k embedding(ids_k) at these rows of its flattened input.

    rows [n]; ids [n, K], -1 where there is none; weight [n, K]. The gradient reaches the embeddings of all the ids.
    """

    def mix(module: Any, inputs: tuple[Tensor, ...], out: Tensor) -> Tensor:
        embeddings = nn.functional.embedding(ids.clamp_min(0).to(out.device), module.weight)
        # an id of -1 is padding: it reads row 0 with weight 0
        share = torch.where(ids < 0, 0.0, weight).to(embeddings)
        mean = (share[..., None] * embeddings).sum(1).to(out.dtype)
        return out.reshape(-1, out.shape[-1]).index_copy(0, rows.to(out.device), mean).view_as(out)

    # a hook on the embedding, since the fast pass and transformers both take ids and look them up themselves
    hook = embedding.register_forward_hook(mix)
    try:
        yield
    finally:
        hook.remove()
