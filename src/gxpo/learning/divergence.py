"""Divergence and expected score of the policy from a stored top-K distribution, the remaining mass in one bin."""

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
    # ids that one side excludes have no ratio
    exists = (student > -torch.inf) & (teacher > -torch.inf)
    s, t = student.masked_fill(~exists, 0.0), teacher.detach().to(student).masked_fill(~exists, 0.0)
    if alpha == 0.0:
        terms = t.exp() * (t - s)
    elif alpha == 1.0:
        terms = s.exp() * (s - t)
    else:
        a = torch.as_tensor(alpha, dtype=s.dtype, device=s.device)
        # in logarithms: the mixture of two small probabilities would vanish
        m = torch.logaddexp(s + torch.log1p(-a), t + a.log())
        terms = (1 - a) * s.exp() * (s - m) + a * t.exp() * (t - m)
    return terms.masked_fill(~exists, 0.0).sum(1)


def expected_score(policy: Tensor, sampler: Tensor, cap: float | None) -> Tensor:
    """[n] sum_b stop(m_b) log p_b, whose gradient is the sampler's expectation of the weighted score grad log p.

    policy   [n, B] log-probabilities of B outcomes, the last of which stands for all other ids; carries the gradient
    sampler  [n, B] the same of the distribution that was sampled from; a row of -inf is 0
    cap      m = q min(p / q, cap) = min(p, cap q), of truncated importance weights; None: m = q, without weights

    The last outcome's gradient is that of the policy's own distribution outside of the listed ids, so that the sampler
    counts there as proportional to the policy. Source: score centering, arXiv 2609.20807 (eqs. 9, 12 and 14, as ports
    restate them).

    >>> logp = torch.tensor([[0.4, 0.4, 0.2]], dtype=torch.float64).log().requires_grad_()
    >>> expected_score(logp, torch.tensor([[0.5, 0.3, 0.2]]).log(), 1.2).sum().backward()
    >>> logp.grad.round(decimals=4).tolist()  # min(p, 1.2 q)
    [[0.4, 0.36, 0.2]]
    """
    # an id that one side excludes is never sampled, or has no score
    exists = (policy > -torch.inf) & (sampler > -torch.inf)
    logp = policy.masked_fill(~exists, 0.0)
    q = sampler.detach().to(logp).exp()
    mass = q if cap is None else torch.minimum(logp.detach().exp(), cap * q)
    return (mass * logp).masked_fill(~exists, 0.0).sum(1)


def with_rest(z: Tensor, total: Tensor, ids: Tensor, support: Tensor | None = None) -> Tensor:
    """[n, K + 1] log-probabilities of these ids, then of all other allowed ids together (-inf: there are none).

    z        [n, V] logits of the whole vocabulary
    total    [n] their logsumexp over the allowed ids
    ids      [n, K] distinct allowed ids, padded with -1, whose column is -inf
    support  [n, A] allowed ids padded with -1; None: all
    """
    ids_logprob = (z.gather(1, ids.clamp_min(0)) - total[:, None]).masked_fill(ids < 0, -torch.inf)
    # counted, since padding is clamped to id 0, which may be listed as well
    is_listed = torch.zeros(z.shape, dtype=torch.int16, device=z.device)
    is_listed.scatter_add_(1, ids.clamp_min(0), (ids >= 0).to(torch.int16))
    if support is not None:
        is_listed = is_listed.gather(1, support.clamp_min(0)).masked_fill(support < 0, 1)
        z = z.gather(1, support.clamp_min(0))
    is_listed = is_listed.masked_fill(z == -torch.inf, 1)  # a forbidden id is none of the rest
    rest_logits = z.masked_fill(is_listed > 0, -torch.inf)
    has_no_rest = (is_listed > 0).all(1)
    # a logsumexp over nothing has no gradient but nan
    rest_logprob = rest_logits.masked_fill(has_no_rest[:, None], 0.0).logsumexp(1) - total
    return torch.cat([ids_logprob, rest_logprob.masked_fill(has_no_rest, -torch.inf)[:, None]], 1)
