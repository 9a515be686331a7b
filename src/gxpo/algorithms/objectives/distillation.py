"""On-policy distillation: divergence to a teacher at the tokens of the policy's own rollouts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import torch
from annotated_types import Interval
from torch import Tensor

from gxpo.algorithms.objectives.base import Evaluated, TermPart, coefficients
from gxpo.algorithms.objectives.surrogate import Positive, Width, denominator
from gxpo.base.errors import MissingSignal
from gxpo.parts.protocols import Output
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import PolicyTokens, Signals


@torch.no_grad()
def confidence_weight(entropy: Tensor, beta: float) -> Tensor:
    """Token weights by teacher confidence, [n]: exp(-beta H) / mean exp(-beta H), of mean 1; beta 0: all 1.

    entropy  [n] of the teacher (nats)

    >>> [round(x, 6) for x in confidence_weight(torch.tensor([0.2, 1.0, 2.0], dtype=torch.float64), 1.0).tolist()]
    [1.858013, 0.834859, 0.307128]
    """
    if not entropy.numel():
        return entropy
    # the common factor e^(beta min H) cancels in the mean, and without it exp may underflow everywhere
    weight = (-beta * (entropy - entropy.min())).exp()
    return weight / weight.mean()


@part("distillation", stage="term")
@dataclass(frozen=True)
class Distillation(TermPart):
    """On-policy distillation: coef * mean over tokens of stop(min(rho, ratio_max)) v_t D_t, D the divergence to the
    teacher at that token and rho = policy / policy at the start of the step.

    D is the policy's output "divergence@alpha", (1 - alpha) KL(S || M) + alpha KL(T || M) of student and teacher with
    M = (1 - alpha) S + alpha T; KL(T || S) at alpha 0 and KL(S || T) at alpha 1, which are not its limits there: those
    are 0, approached as alpha times and 1 - alpha times these.

    alpha      0 to 1
    ratio_max  absolute bound of the ratio, which carries no gradient; None: the ratio is left out
    beta       v = `confidence_weight` of the teacher's entropies, over the step's taught tokens; 0: v = 1
    mean_over  what the mean is over: "taught", the trainable tokens that have a teacher, or "all" trainable tokens,
               which is the denominator of a policy gradient under `token_mean`

    Reads signals "teacher_ids", "teacher_logprob" and "teacher_entropy" (nan: no teacher there; such tokens are not
    trained). Credit is not read. Weight parts do not touch it, `forest.weight` does; it changes no denominator.

    Source: SDPO, arXiv 2601.20802, and its code (alpha 0.5, bound 2, token mean); weights by entropy: SRPO.
    """

    slot = "NAME"
    alpha: Annotated[float, Interval(ge=0, le=1)] = 0.5
    ratio_max: Positive | None = 2.0
    beta: Width = 0.0
    mean_over: Literal["taught", "all"] = "taught"
    coef: Width = 1.0

    reads_credit = False
    needs = ("teacher_ids", "teacher_logprob", "teacher_entropy")
    constants = ("teacher_ids", "teacher_logprob")
    learns_from_equal_groups = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "outputs", ("logprob", self.name))

    @property
    def name(self) -> Output:
        """Name of the policy output that the term reads."""
        return Output("divergence", float(self.alpha))

    def __call__(
        self, forest: Forest, policy: PolicyTokens, credit: Tensor, weight: Tensor, signals: Signals, step: int
    ) -> Evaluated:
        """Figures, over the tokens that have a teacher: teacher_divergence, the mean before all factors (nats);
        teacher_entropy (nats); taught_share, their share of the trainable tokens."""
        entries, divergence = self._divergence(forest, policy, signals)
        trainable_P = forest.path_trainable
        counted_P = trainable_P if self.mean_over == "all" else trainable_P & self._has_teacher(signals)
        scale_P = coefficients(forest.path_trajectory, counted_P, "token_mean")
        scale_P = self.coef * scale_P * forest.to_path(forest.weight, "R")
        entropy = signals["teacher_entropy"][entries]
        # neither factor carries a gradient: they say how much each token's divergence counts
        factor = confidence_weight(entropy, self.beta).to(divergence)
        if self.ratio_max is not None:
            below = denominator(policy, trainable_P, "proximal", "one")[entries]
            factor = factor * (policy.logprob[entries].detach() - below).exp().clamp_max(self.ratio_max)
        figures = {"taught_share": entries.numel() / max(1, int(trainable_P.sum()))}
        if entries.numel():
            figures |= {
                "teacher_divergence": float(divergence.detach().mean()),
                "teacher_entropy": float(entropy.mean()),
            }
        return (scale_P[entries].to(divergence) * factor * divergence).sum(), figures

    def active(self, forest: Forest, credit: Tensor, weight: Tensor, signals: Signals | None = None) -> Tensor:
        """Trainable tokens of trajectories of non-zero `forest.weight`; with the signals, those with a teacher."""
        if self.coef == 0:
            return torch.zeros_like(forest.path_trainable)
        has_weight_P = forest.path_trainable & (forest.to_path(forest.weight, "R") != 0)
        return has_weight_P if signals is None else has_weight_P & self._has_teacher(signals)

    def _has_teacher(self, signals: Signals) -> Tensor:
        return signals["teacher_entropy"].isfinite()

    def _divergence(self, forest: Forest, policy: PolicyTokens, signals: Signals) -> tuple[Tensor, Tensor]:
        """Indices into P of the taught tokens, and the divergence of each to its teacher."""
        # `active` reads neither credit nor weight of this term: any column does
        entries = self.active(forest, policy.logprob, policy.logprob, signals).nonzero().squeeze(1)
        if self.name not in policy.outputs:
            raise MissingSignal(f"distillation needs output {self.name!r} of the policy: give it in `outputs`")
        return entries, policy.outputs[self.name][entries].to(policy.logprob)
