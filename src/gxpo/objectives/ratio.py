"""Importance ratio of the current over the old policy, in log space: per token, per turn, per sequence (GSPO)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gxpo.errors import GxpoError
from gxpo.ranges import Part

if TYPE_CHECKING:
    from gxpo.protocols import PolicyTokens

RATIO_OVER = ("proximal", "behaviour")
ON_UNKNOWN = ("error", "one", "shaped")


def denominator(
    policy: PolicyTokens, trainable: Tensor, ratio_over: str = "proximal", on_unknown_behaviour: str = "error"
) -> Tensor:
    """Log-probs of the ratio's denominator (the old policy), [P], detached, in the dtype of `policy.logprob`.

    ratio_over            "proximal": the proximal policy where the step has one, else the behaviour policy;
                          "behaviour": the behaviour policy always (objectives made for old data)
    on_unknown_behaviour  for trainable entries where that is nan: "error", or "one": stop_gradient(logprob), so that
                          the ratio is exactly 1 and the gradient is REINFORCE's. "shaped": the same where the
                          rollout policy is unknown (behaviour nan), since such a token has no ratio
                          (see `surrogate.shaped`); "error" elsewhere

    Raises GxpoError with the number of unknown entries. Entries that are not trainable never matter.
    """
    given = policy.proximal_logprob if ratio_over == "proximal" else None
    chosen = (policy.behaviour_logprob if given is None else given).detach().to(policy.logprob)
    shaped = policy.behaviour_logprob.isnan() & (on_unknown_behaviour == "shaped")
    unknown = chosen.isnan() & ~shaped
    if on_unknown_behaviour != "one" and (missing := int((unknown & trainable).sum())):
        kind = "behaviour" if given is None else "proximal"
        raise GxpoError(
            f"{missing} of {int(trainable.sum())} trainable tokens have no {kind} log-prob to divide the ratio by: "
            f"record `logprob` for them, or set objective.on_unknown_behaviour to 'one'"
        )
    return torch.where(unknown | shaped, policy.logprob.detach(), chosen)


class _Exp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        out = x.exp()
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:  # type: ignore[override]  # torch declares any number of them
        (out,) = ctx.saved_tensors
        return torch.where(slope == 0, torch.zeros_like(out), slope * out)


def ratio_of(log_ratio: Tensor) -> Tensor:
    """Ratio e^log_ratio, whose derivative is exactly 0 where the incoming one is: a token that a clip cuts or a mask
    leaves out has none, and 0 times a ratio that has overflowed would be nan. Elsewhere the derivative is the
    ratio, infinite or not."""
    return _Exp.apply(log_ratio)


def sequence_ratio(log_ratio: Tensor, trajectory: Tensor) -> Tensor:
    """GSPO-token log-ratio, [n]: log s_{i,t} = stop(mean over trajectory i of log rho) + log rho_t - stop(log rho_t).

    log_ratio   [n] of the trainable entries, all of those of each trajectory present
    trajectory  [n] which trajectory each belongs to

    The value is the geometric mean of the trajectory's token ratios; each token carries its own gradient. Under
    `sequence_mean` and an advantage that is constant over a trajectory, value and gradient are those of GSPO, whose
    ratio is s_i itself; an advantage that varies within a trajectory is allowed.

    Source: GSPO, arXiv 2507.18071, eq. 5, 7 and 13.
    """
    held = log_ratio.detach()
    n = int(trajectory.max()) + 1 if trajectory.numel() else 0
    total = held.new_zeros(n).index_add_(0, trajectory, held)
    length = held.new_zeros(n).index_add_(0, trajectory, torch.ones_like(held))
    return (total / length)[trajectory] + (log_ratio - held)


class Ratio(Part, ABC):
    """Base class of importance ratios: the level at which a token's log-ratio is taken.

    couples   "token" | "trajectory": whose log-ratios the value or the derivative at an entry depend on
    """

    slot = "objective"
    couples: str = "token"

    @abstractmethod
    def level(self, log_ratio: Tensor, trajectory: Tensor, turn: Tensor) -> Tensor:
        """Log-ratio at the part's level, [n]; each token carries its own gradient.

        log_ratio         [n] of the tokens, in path order; beyond "token" all trained ones of each trajectory
        trajectory, turn  [n] int64: which trajectory, and which step of one, each belongs to
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Token(Ratio):
    """Token-level importance ratio (PPO, GRPO). Source: PPO, arXiv 1707.06347."""

    def level(self, log_ratio: Tensor, trajectory: Tensor, turn: Tensor) -> Tensor:
        return log_ratio


@dataclass(frozen=True)
class Sequence(Ratio):
    """Sequence-level importance ratio (GSPO-token): geometric mean over the trajectory, see `sequence_ratio`."""

    couples = "trajectory"

    def level(self, log_ratio: Tensor, trajectory: Tensor, turn: Tensor) -> Tensor:
        return sequence_ratio(log_ratio, trajectory)


@dataclass(frozen=True)
class Turn(Ratio):
    """Turn-level importance ratio: geometric mean over the turn (a step), each token with its own gradient.

    With one turn a trajectory it is `Sequence`. Source: segment ratios of ROLL; SeeUPO's ratio of a turn.
    """

    couples = "trajectory"

    def level(self, log_ratio: Tensor, trajectory: Tensor, turn: Tensor) -> Tensor:
        return sequence_ratio(log_ratio, turn)
