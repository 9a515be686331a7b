"""Gates for the tokens that take most of the policy's entropy: those whose credit and log-prob go together."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gxpo.errors import ConfigError
from gxpo.objectives.gate import Clip, Entries, Gate
from gxpo.objectives.prefix import places

_MIX = -7046029254386353131  # 2^64 / golden ratio, odd, as int64


@torch.no_grad()
def covariance(logprob: Tensor, credit: Tensor) -> Tensor:
    """[n] float64: (A - mean A)(log pi - mean log pi), means over all given tokens.

    >>> covariance(torch.tensor([-0.2, -1.1, -2.4, -0.1, -0.2]), torch.tensor([1.0, 1, -1, -1, -1])).round(decimals=2)
    tensor([ 0.7200, -0.3600,  1.2800, -0.5600, -0.4800], dtype=torch.float64)
    """
    logprob, credit = logprob.to(torch.float64), credit.to(torch.float64)
    return (credit - credit.mean()) * (logprob - logprob.mean())


@torch.no_grad()
def draw(x: Entries, seed: int) -> Tensor:
    """[n] int64: a number for each entry that looks random, the same whenever the entry is the same.

    Made of the seed, the entry's place in its trajectory, its credit and the log-prob below its ratio (to 1/4096): not
    of the order of trajectories, nor of the micro-batches, and constant over the updates of a step.
    """
    found = torch.full(x.credit.shape, seed, dtype=torch.int64)
    for column in (places(x.trajectory), *((c.double() * 4096).round().long() for c in (x.credit, x.below))):
        found = (found ^ column) * _MIX
        found = found ^ (found >> 29)
    return found * _MIX


def quota(share: float, n: int) -> int:
    """How many of n tokens a share is: rounded down, at least 1."""
    return max(1, int(share * n))


def _check_share(share: float) -> None:
    if not 0 < share <= 1:
        raise ConfigError(f"objective.covariance_share is {share}; it is a share of the step's tokens above 0, up to 1")


@dataclass(frozen=True)
class CovarianceClip(Clip):
    """`Clip`, and no loss at all for a few tokens drawn among those of great `covariance` (Clip-Cov).

    covariance_share   k = max(1, share of the step's trained tokens) of them are dropped; they stay in denominators
    covariance_low, covariance_high  whose covariance lies between these, and whom the clip does not cut, can be drawn
    draw_seed          of the draw (`draw`); the k smallest numbers are taken

    All trained tokens of the optimiser step are one set, whatever the micro-batches.

    Source: arXiv 2505.22617, as in verl, where the set is a micro-batch.
    """

    covariance_share: float = 2e-4
    covariance_low: float = 1.0
    covariance_high: float = 5.0
    draw_seed: int = 0

    couples = "step"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_share(self.covariance_share)
        if not self.covariance_low < self.covariance_high:
            raise ConfigError(
                f"objective.covariance_low ({self.covariance_low}) must be below covariance_high "
                f"({self.covariance_high})"
            )

    @torch.no_grad()
    def dropped(self, x: Entries) -> Tensor:
        """[n] bool: the drawn ones."""
        found = covariance(x.logprob, x.credit)
        able = (found > self.covariance_low) & (found < self.covariance_high) & ~super().clipped(x)
        candidates = able.nonzero().squeeze(1)
        order = torch.argsort(draw(x, self.draw_seed)[candidates], stable=True)
        taken = torch.zeros_like(able)
        taken[candidates[order[: quota(self.covariance_share, len(able))]]] = True
        return taken

    def loss(self, x: Entries) -> Tensor:
        return torch.where(self.dropped(x), 0.0, super().loss(x))

    def clipped(self, x: Entries) -> Tensor:
        return super().clipped(x) | self.dropped(x)


@dataclass(frozen=True)
class CovariancePenalty(Gate):
    """-A rho, and + drift_coef |log rho| for the tokens of greatest `covariance` (KL-Cov); nothing is clipped.

    covariance_share  max(1, share of the step's trained tokens) of them are held back
    drift_coef        of the penalty

    On policy the penalty has no gradient: it takes several updates a step to act. -A rho is unbounded where A < 0.

    Source: arXiv 2505.22617, as in verl, where the set is a micro-batch.
    """

    covariance_share: float = 2e-4
    drift_coef: float = 1.0

    couples = "step"

    def __post_init__(self) -> None:
        _check_share(self.covariance_share)
        if not self.drift_coef >= 0:
            raise ConfigError(f"objective.drift_coef is {self.drift_coef}; it is 0 or more")

    @torch.no_grad()
    def held(self, x: Entries) -> Tensor:
        """[n] bool: those that are penalised; of equals, the earlier."""
        order = torch.argsort(covariance(x.logprob, x.credit), descending=True, stable=True)
        taken = torch.zeros(x.credit.shape, dtype=torch.bool)
        taken[order[: quota(self.covariance_share, len(order))]] = True
        return taken

    def loss(self, x: Entries) -> Tensor:
        return super().loss(x) + torch.where(self.held(x), self.drift_coef * x.log_ratio.abs(), 0.0)

    def clipped(self, x: Entries) -> Tensor:
        return self.held(x) & (x.log_ratio != 0)
