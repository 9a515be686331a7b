"""Penalty of each agent's step, with a coefficient of its own that adapts (Decentralized Policy Optimization)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Gt
from torch import Tensor

from gxpo.algorithms.objectives.base import Evaluated, TermPart
from gxpo.algorithms.objectives.control import Control
from gxpo.algorithms.objectives.penalty import mirror_kl
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import PolicyTokens, Signals

TINY = 1e-8  # under the root, whose slope at 0 is infinite: rounding of log-probs must not become a gradient


def step_penalty(kl: Tensor, root: float, linear: float) -> Tensor:
    """Penalty of a step of KL `kl`: root * sqrt(kl) + linear * kl.

    >>> import torch
    >>> round(float(step_penalty(torch.tensor(0.04), 1.0, 1.0)), 6)
    0.24
    """
    return root * (kl + TINY).sqrt() + linear * kl


def adapt_coef(coef: float, kl: float, target: float, tolerance: float = 1.5, factor: float = 2.0) -> float:
    """Coefficient after a step: `factor` times it above `target` * `tolerance`, divided below `target` / `tolerance`.

    >>> adapt_coef(1.0, 0.04, 0.01), adapt_coef(1.0, 0.001, 0.01), adapt_coef(1.0, 0.01, 0.01)
    (2.0, 0.5, 1.0)
    """
    return coef * factor if kl > target * tolerance else coef / factor if kl < target / tolerance else coef


@part("per_role", stage="control")
@dataclass(frozen=True)
class PerRole(Control):
    """Coefficient of each role by `adapt_coef`, from the figure "role_kl@ROLE" of its own step.

    target  nats a token;   tolerance, factor  see `adapt_coef`
    """

    target: Annotated[float, Gt(0)] = 0.01
    tolerance: Annotated[float, Gt(1)] = 1.5
    factor: Annotated[float, Gt(1)] = 2.0
    factors: dict[str, float] = field(init=False, repr=False, compare=False, default_factory=dict)

    def coefficient(self, start: float) -> float:
        return start

    def adjust(self, figures: Mapping[str, float]) -> dict[str, float]:
        for name, kl in figures.items():
            if name.startswith("role_kl@"):
                role = name.partition("@")[2]
                self.factors[role] = adapt_coef(
                    self.factors.get(role, 1.0), kl, self.target, self.tolerance, self.factor
                )
        return {f"role_kl_factor@{role}": x for role, x in self.factors.items()}

    def state_dict(self) -> dict[str, Any]:
        return dict(self.factors)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.factors.clear()
        self.factors.update({role: float(x) for role, x in state.items()})


@part("role_kl", stage="term")
@dataclass(frozen=True)
class RoleKl(TermPart):
    """Penalty of each role's step: sum over roles of f_k (root_coef sqrt(KL_k) + linear_coef KL_k).

    KL_k is to the policy before the step, the mean of `mirror_kl` over the trained tokens of role k, f_k the role's
    factor of `control: per_role`, or 1. Needs several updates a step: on the first it has no gradient.
    Source: Decentralized Policy Optimization, arXiv 2211.03032.
    """

    slot = "objective.add.NAME"
    root_coef: float = 1.0
    linear_coef: float = 1.0
    control: Control | None = None

    couples = "step"
    learns_from_equal_groups = True

    def __call__(
        self, forest: Forest, policy: PolicyTokens, credit: Tensor, weight: Tensor, signals: Signals, step: int
    ) -> Evaluated:
        entries = self.active(forest, credit, weight).nonzero().squeeze(1)
        old = policy.behaviour_logprob if policy.proximal_logprob is None else policy.proximal_logprob
        agent_P = forest.to_path(forest.step_agent, "S")[entries]
        logprob = policy.logprob[entries]
        kl = mirror_kl(logprob - old.detach()[entries].to(logprob))
        total, figures = logprob.sum() * 0.0, {}
        for index in agent_P.unique().tolist():
            role, mean = forest.agent_names[index], kl[agent_P == index].mean().clamp_min(0.0)
            factor = getattr(self.control, "factors", {}).get(role, 1.0)
            total = total + factor * step_penalty(mean, self.root_coef, self.linear_coef)
            figures[f"role_kl@{role}"] = float(mean.detach())
        return total, figures

    def active(self, forest: Forest, credit: Tensor, weight: Tensor, signals: Signals | None = None) -> Tensor:
        """Trainable tokens of trajectories of non-zero `forest.weight`."""
        return forest.path_trainable & (forest.to_path(forest.weight, "R") != 0)
