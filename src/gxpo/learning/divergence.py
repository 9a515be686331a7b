"""Divergence (KL, generalised JSD) of the policy from a stored top-K distribution, the remaining mass in one bin."""

from __future__ import annotations

import torch
from torch import Tensor


def generalised_jensen_shannon(student: Tensor, teacher: Tensor, alpha: float) -> Tensor:
    """[n] (1 - alpha) KL(S || M) + alpha KL(T || M) with M = (1 - alpha) S + alpha T; at 0 KL(T || S), at 1 KL(S || T).

    student  [n, B] log-probabilities of B outcomes; carries the gradient
    teacher  [n, B] the same of a constant distribution. -inf on either side: the outcome does not exist, and counts
             nowhere; a row without outcomes is 0
    alpha    0 to 1

    Not continuous at its ends: as alpha goes to 0 the value goes to 0 as alpha KL(T || S) does, and at alpha 0 it is
    KL(T || S) itself; the same at 1 with (1 - alpha) KL(S || T).

    Source: the loss of SDPO, arXiv 2601.20802.
    """
    exists = (student > -torch.inf) & (teacher > -torch.inf)
    s, t = student.masked_fill(~exists, 0.0), teacher.detach().to(student).masked_fill(~exists, 0.0)
    if alpha == 0.0:
        each = t.exp() * (t - s)
    elif alpha == 1.0:
        each = s.exp() * (s - t)
    else:
        a = torch.as_tensor(alpha, dtype=s.dtype, device=s.device)
        m = torch.logaddexp(s + torch.log1p(-a), t + a.log())
        each = (1 - a) * s.exp() * (s - m) + a * t.exp() * (t - m)
    return each.masked_fill(~exists, 0.0).sum(1)


def with_rest(z: Tensor, total: Tensor, ids: Tensor, support: Tensor | None = None) -> Tensor:
    """[n, K + 1] log-probabilities of these ids, then of all other allowed ids together (-inf: there are none).

    z        [n, V] logits of the whole vocabulary
    total    [n] their logsumexp over the allowed ids
    ids      [n, K] distinct allowed ids, padded with -1, whose column is -inf
    support  [n, A] allowed ids padded with -1; None: all
    """
    named = (z.gather(1, ids.clamp_min(0)) - total[:, None]).masked_fill(ids < 0, -torch.inf)
    taken = torch.zeros(z.shape, dtype=torch.int16, device=z.device)
    taken.scatter_add_(1, ids.clamp_min(0), (ids >= 0).to(torch.int16))
    if support is not None:
        taken = taken.gather(1, support.clamp_min(0)).masked_fill(support < 0, 1)
        z = z.gather(1, support.clamp_min(0))
    rest = z.masked_fill(taken > 0, -torch.inf)
    nothing = (taken > 0).all(1)
    # a logsumexp over nothing has no gradient but nan
    left = rest.masked_fill(nothing[:, None], 0.0).logsumexp(1) - total
    return torch.cat([named, left.masked_fill(nothing, -torch.inf)[:, None]], 1)
