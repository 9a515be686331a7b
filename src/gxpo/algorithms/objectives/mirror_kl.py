"""KL to the old policy: the proximity term of mirror descent policy optimisation (MDPO)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from gxpo.algorithms.objectives.control import annealed
from gxpo.algorithms.objectives.penalty import Penalty
from gxpo.algorithms.objectives.surrogate import Width
from gxpo.base.errors import GxpoError
from gxpo.parts.definition import kind_of
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import PolicyTokens


def mirror_kl(log_ratio: Tensor) -> Tensor:
    """Estimate of KL(policy || old) at tokens that the old policy sampled, [n]: rho log rho - rho + 1.

    Unbiased, never negative, 0 at rho = 1. Its derivative in the log-prob is rho log rho, exactly 0 on policy, where
    that of rho log rho alone is 1: the two differ by rho - 1, whose expectation is 0.

    log_ratio  [n] log policy - log old, carries the gradient

    Source: MDPO, arXiv 2005.09814 (the KL with the new policy first, unlike TRPO's).
    """
    return log_ratio.exp() * (log_ratio - 1.0) + 1.0  # not infinity less infinity where the ratio has overflowed


@part("mirror_kl", stage="term")
@dataclass(frozen=True)
class MirrorKl(Penalty):
    """Mirror-descent KL: coef * aggregate of `mirror_kl` over the trainable tokens; old is the policy at the start of
    the step, or the rollout policy where the step has no other.

    coef         1 / t at the start of the run, t the step size of mirror descent
    least, total_steps  of the control that divides it by 1 - k / total_steps, unless another is given: see `annealed`;
                 least 1 leaves the coefficient as it is

    Needs several updates a step: on the first it has no gradient.
    """

    slot = "objective.add.NAME"
    coef: Width = 1.0
    least: float = 0.05
    total_steps: int | None = None

    name = "mirror_kl"
    learns_from_equal_groups = True

    def __post_init__(self) -> None:
        kind = kind_of(annealed)
        if self.control is None or isinstance(self.control, kind):
            object.__setattr__(self, "control", kind(least=self.least, total_steps=self.total_steps))

    def quantity(self, forest: Forest, policy: PolicyTokens, entries: Tensor) -> Tensor:
        logprob = policy.logprob[entries]
        old = policy.behaviour_logprob if policy.proximal_logprob is None else policy.proximal_logprob
        below = old.detach()[entries].to(logprob)
        if missing := int(below.isnan().sum()):
            raise GxpoError(
                f"objective.add.mirror_kl: {missing} of {entries.numel()} trained tokens have no log-prob of the old "
                "policy: record `logprob` for them, or give a proximal policy"
            )
        return mirror_kl(logprob - below)
