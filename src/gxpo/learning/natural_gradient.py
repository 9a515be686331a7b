"""Natural gradient step within a KL trust region (TRPO)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Gt, Interval
from torch import Tensor

from gxpo.base.devices import has_float64, to_host_float64
from gxpo.forest.forest import Forest
from gxpo.learning.base import UpdatePart
from gxpo.learning.parameter_checks import first_not_finite
from gxpo.parts.protocols import StepInfo, StepRunner
from gxpo.parts.registry import part


def conjugate_gradient(product: Callable[[Tensor], Tensor], b: Tensor, iterations: int = 10) -> Tensor:
    """Conjugate gradient: solve product(x) = b approximately, for a symmetric positive definite product, from x = 0.

    At most `iterations` products; fewer where the residual's norm is 1e-10 of b's. In n dimensions n are exact.
    """
    x, residual = torch.zeros_like(b), b.clone()
    direction, size = residual.clone(), _dot(b, b)
    size_limit = 1e-20 * size
    for _ in range(iterations):
        if size <= size_limit:
            break
        image = product(direction)
        curvature = _dot(direction, image)
        if not curvature > 0:  # rounding has left no direction that curves upwards
            break
        x += size / curvature * direction
        residual -= size / curvature * image
        previous_size, size = size, _dot(residual, residual)
        direction = residual + size / previous_size * direction
    return x


def mean_kl(logprob: Tensor, old: Tensor) -> float:
    """KL(old || new), unbiased and never below 0: mean of rho - 1 - log rho over the old policy's tokens [n], rho = pi
    / pi_old.

    >>> round(mean_kl(torch.tensor([-0.9, -2.1]), torch.tensor([-1.0, -2.0])), 6)
    0.005004
    """
    gap = logprob - old
    return float((gap.expm1() - gap).mean()) if len(gap) else 0.0


@part("natural_gradient", stage="update")
@dataclass(frozen=True)
class NaturalGradient(UpdatePart):
    """Natural gradient step with line search (TRPO).

    theta <- theta - c sqrt(2 radius / x^T (F + damping I) x) x,  (F + damping I) x = grad L(theta), c the first of 1,
    shrink, shrink^2... with L below where it was and mean KL(old || new) <= slack * radius; no step where none is.

    radius      delta, nats a token
    damping     added to the Fisher matrix
    iterations  of conjugate gradients
    backtracks, shrink   shorter steps that are tried, and by what each is shorter
    slack       how far beyond `radius` a step may get
    damped_length  False: the length by x^T F x alone, so that the full step's KL is `radius` to second order, and not
                   less as the damping has it

    F = mean over the step's trained, scored tokens of grad logprob grad logprob^T: the Fisher matrix as estimated on
    the sampler's tokens, and the Hessian at theta of mean (logprob - old)^2 / 2. A product F v is one gradient, of
    sum_t (J v)_t logprob_t / n, with J v by central differences of the log-probs along v, so F is symmetric to the
    accuracy of J v. KL by `mean_kl` over the same tokens; `approx_kl` in the metrics, over those with an advantage.

    The optimiser is not used: `optim.lr`, its schedule, weight decay, clipping of the gradient and Adam's moments mean
    nothing here. Parameters of 32 bits at least, and four copies of the trained ones. A step costs `iterations` + 1
    gradients and up to 2 `iterations` + 4 + `backtracks` forward passes; its tokens are not counted in the metrics.
    Nothing is remembered.

    Source: TRPO, arXiv 1502.05477, section 6 and appendix C; the rest as openai/baselines (`trpo_mpi`) has it.
    """

    sets_parameters: ClassVar[bool] = True

    radius: Annotated[float, Gt(0)] = 0.01
    damping: Annotated[float, Ge(0)] = 0.1
    iterations: Annotated[int, Ge(1)] = 10
    backtracks: Annotated[int, Ge(0)] = 9
    shrink: Annotated[float, Interval(gt=0, lt=1)] = 0.5
    slack: Annotated[float, Ge(1)] = 1.5
    damped_length: bool = True

    def optimiser_steps(self, groups: int) -> int:
        """1: one natural gradient step; AdamW itself takes none."""
        return 1

    def run(self, forest: Forest, credit: Tensor, weight: Tensor, learner: StepRunner) -> list[StepInfo]:
        # parameters are moved for the differences and restored: the start is the only exact copy
        start_parameters = learner.snapshot()
        start_info = learner.evaluate(forest, credit, weight)
        slopes = learner.gradient(forest, credit, weight)
        gradient = flatten(slopes)
        if not bool(gradient.any()):
            return [learner.record(forest, credit, weight, StepInfo(empty=True))]
        if not bool(gradient.isfinite().all()):
            info = replace(start_info, grad_norm=math.inf, nonfinite=first_not_finite(slopes) or "")
            return [learner.record(forest, credit, weight, info)]
        theta = flatten(start_parameters)
        is_trained_P = forest.path_trainable & forest.to_path(forest.scored, "R")
        old_logprob = start_info.outputs["logprob"][is_trained_P]

        # F v = J^T (J v) / n: J v by central differences, J^T of it as one gradient
        def along(v: Tensor) -> Tensor:
            """[n] J v: the derivative of the tokens' log-probs along v."""
            # the step width of central differences: the cube root of the precision, relative to the parameters
            width = torch.finfo(theta.dtype).eps ** (1 / 3) * max(1.0, float(theta.norm())) / float(v.norm())
            sides = []
            for sign in (1, -1):
                learner.restore(unflatten(theta + sign * width * v, start_parameters))
                sides.append(learner.logprob()[is_trained_P])
            return (sides[0] - sides[1]) / (2 * width)

        def damped_product(v: Tensor) -> Tensor:
            """(F + damping I) v, the product that conjugate gradients need."""
            slope = torch.zeros(forest.n_entries, dtype=torch.float64)
            slope[is_trained_P] = along(v) / len(old_logprob)
            learner.restore(start_parameters)
            return flatten(learner.gradient(forest, credit, weight, slope)) + self.damping * v

        # section 6: solve for the direction, then scale it so that the quadratic model of the KL reaches the radius
        direction = conjugate_gradient(damped_product, gradient, self.iterations)
        # along the direction itself: the damping of the solver enters only where `damped_length` asks for it
        curvature = float(along(direction).square().mean()) if bool(direction.any()) else 0.0
        if self.damped_length:
            curvature += self.damping * _dot(direction, direction)
        full_length = math.sqrt(2 * self.radius / curvature) if curvature > 0 else 0.0
        # appendix C: backtrack until the loss falls and the measured KL is within the slack; else take no step
        accepted_info = start_info
        for k in range(self.backtracks + 1 if full_length else 0):
            learner.restore(unflatten(theta - full_length * self.shrink**k * direction, start_parameters))
            trial = learner.evaluate(forest, credit, weight)
            if (
                trial.loss < start_info.loss
                and mean_kl(trial.outputs["logprob"][is_trained_P], old_logprob) <= self.slack * self.radius
            ):
                accepted_info = trial
                break
        # no step was good enough: the policy stays where it was
        if accepted_info is start_info:
            learner.restore(start_parameters)
        info = replace(accepted_info, loss=start_info.loss, grad_norm=float(gradient.norm()))
        return [learner.record(forest, credit, weight, info)]


def flatten(tensors: Mapping[str, Tensor]) -> Tensor:
    """Concatenate all tensors into one vector, in order of names."""
    return torch.cat([tensors[name].reshape(-1) for name in sorted(tensors)])


def unflatten(column: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Split a vector into named tensors with the shapes of `like`: the inverse of `flat`."""
    names = sorted(like)
    parts = column.split([like[name].numel() for name in names])
    return {name: part.view_as(like[name]) for name, part in zip(names, parts, strict=True)}


def _dot(a: Tensor, b: Tensor) -> float:
    product = a.double() * b.double() if has_float64(a.device) else to_host_float64(a) * to_host_float64(b)
    return float(product.sum())
