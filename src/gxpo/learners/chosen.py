"""Log-probabilities and entropies of logits, with gradients by hand: few passes over [n, vocabulary], and one held."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

NEVER = -1e4  # a log-probability whose probability is 0 in every dtype, and finite: 0 times it is 0


def scaled(logits: Tensor, temperature: Tensor) -> Tensor:
    """[n, V] logits / temperature in float32 at least, in memory of its own."""
    z = logits.to(torch.promote_types(logits.dtype, torch.float32), copy=True)
    return z if bool((temperature == 1).all()) else z.div_(temperature[:, None].to(z))


class Chosen(Function):
    """log p(target) [n] and, where `wanted`, entropy [n] (nats) of p = softmax(z), z = logits [n, V] / temperature [n].

    Holds the logits as they came. With respect to z the first has gradient onehot(target) - p, the second
    -p (log p + entropy).
    """

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, target: Tensor, temperature: Tensor, wanted: bool
    ) -> tuple[Tensor, Tensor | None]:
        z = scaled(logits, temperature)
        highest = z.amax(1, keepdim=True)
        p = (z - highest).exp_()
        mass = p.sum(1)
        total = highest.squeeze(1) + mass.log()
        logprob = z.gather(1, target[:, None]).squeeze(1) - total
        entropy = None
        if wanted:
            entropy = total - z.clamp_(min=torch.finfo(z.dtype).min).mul_(p).sum(1) / mass
        ctx.save_for_backward(logits, target, temperature, total, entropy)
        ctx.set_materialize_grads(False)
        return logprob, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        logits, target, temperature, total, entropy = ctx.saved_tensors
        by_logprob, by_entropy = grads
        if by_logprob is None and by_entropy is None:
            return None, None, None, None
        z = scaled(logits, temperature).sub_(total[:, None])
        slope = torch.zeros_like(total) if by_logprob is None else -by_logprob
        if by_entropy is None:
            g = z.exp_().mul_(slope[:, None])
        else:
            p = z.exp()
            z.clamp_(min=NEVER).add_(entropy[:, None]).mul_(-by_entropy[:, None])
            g = p.mul_(z.add_(slope[:, None]))
        g.scatter_add_(1, target[:, None], -slope[:, None])
        if not bool((temperature == 1).all()):
            g.div_(temperature[:, None].to(g))
        return g.to(logits.dtype), None, None, None
