"""Optimiser steps for the update part of a method: `BoundLearner`, the learner with one step's loss bound to it.

Also which token and which term of the objective are steepest where a gradient is not finite.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gxpo.algorithms.signals import Signals
from gxpo.base.errors import ConfigError
from gxpo.forest.forest import Forest
from gxpo.learning.base import gradient_of
from gxpo.methods.method import Loss, Method
from gxpo.parts.protocols import PolicyTokens, StepInfo
from gxpo.sampling.rollouts.logged import LOGGED


@dataclass(frozen=True)
class Batch:
    """The trajectories of one optimiser step, and everything that the method's loss reads of them.

    credit    [P] advantages;   weight [P];   both of the forest's trajectories alone, as are the signals
    proximal  [P] log-probs of the proximal policy; None: stop_gradient(current)
    """

    method: Method
    forest: Forest
    credit: Tensor
    weight: Tensor
    signals: Signals
    proximal: Tensor | None
    step: int

    def policy(self, x: Mapping[str, Tensor]) -> PolicyTokens:
        """Put the current outputs together with the log-probs of sampler, reference and proximal policy."""
        return PolicyTokens(
            x["logprob"],
            self.forest.path_behaviour_logprob,
            self.signals.get("reference_logprob"),
            x.get("entropy"),
            proximal_logprob=x["logprob"].detach() if self.proximal is None else self.proximal,
            value=x.get("value"),
            outputs=x,
        )

    def evaluate(self, x: Mapping[str, Tensor], method: Method | None = None) -> Loss:
        """Evaluate L(x) and the figures of its terms, for this method or another one."""
        inputs = self.credit, self.weight, self.signals, self.step
        return (method or self.method).evaluate(self.forest, self.policy(x), *inputs)

    def loss(self, x: Mapping[str, Tensor], method: Method | None = None) -> Tensor:
        """L(x) alone."""
        return self.evaluate(x, method).value

    @cached_property
    def active(self) -> Tensor:
        """[P] bool: entries whose outputs the loss reads."""
        return self.method.active(self.forest, self.credit, self.weight, self.signals)

    def figures(self, x: Mapping[str, Tensor]) -> dict[str, float]:
        """Figures of the terms, and the mean entropy (nats) of the trained tokens that went through the model."""
        # Rows without credit were not run and are nan; the loss multiplies whatever stands there by zero.
        outputs = {name: torch.nan_to_num(v, nan=0.0) for name, v in x.items()}
        term_figures = self.evaluate(outputs).metrics
        if "entropy" not in x:  # a training engine may give none
            return term_figures
        entropy = x["entropy"][self.forest.path_trainable]
        entropy = entropy[entropy.isfinite()]
        return term_figures | ({"entropy": float(entropy.mean())} if entropy.numel() else {})


class BoundLearner:
    """The learner with the step's method and signals bound to it: an `Update` moves parameters with it.

    Implements `gxpo.parts.learning.StepRunner`. The proximal policy is the learner's at the start of the step. On the
    first optimiser step it is stop_gradient(current): the ratio is exactly 1 and costs no forward pass. Afterwards it
    is what that first step saw, or, where the first step saw a part of the rollouts only, a forward pass made before
    anything moved (`proximal`, where the step's signals have needed it already).
    """

    def __init__(
        self,
        learner: Any,
        method: Method,
        forest: Forest,
        signals: Signals,
        step: int,
        proximal: Tensor | None = None,
    ) -> None:
        self.learner, self.method, self.forest, self.signals, self.step_number = learner, method, forest, signals, step
        self.proximal = proximal
        self.infos: list[StepInfo] = []  # of all optimiser steps
        self.metrics: list[dict[str, float]] = []  # of those that moved something
        self.skip_reason = ""  # why the newest of the optimiser steps that were skipped was
        # |proximal - behaviour| log-prob among the tokens of the first optimiser step; None: nothing was compared
        self.sampler_gap: float | None = None  # the largest
        self.sampler_gap_mean: float | None = None
        self.mismatch_kl: float | None = None  # over all tokens with a known sampler, in nats a token
        # An output whose own signal is nan throughout is one that nobody reads in this step.
        unread_names = {n for n in method.outputs if n.at and n in signals and bool(signals[n].isnan().all())}
        # Entropy is a figure of every step that costs nothing more, but a training engine may not give it.
        extra_outputs = ("entropy",) if "entropy" in getattr(learner, "gives", ("entropy",)) else ()
        self._names = tuple(n for n in dict.fromkeys((*method.outputs, *extra_outputs)) if n not in unread_names)

    def step(self, forest: Forest, credit: Tensor, weight: Tensor, trajectories: Tensor | None = None) -> StepInfo:
        """Take one optimiser step on these trajectories (all of the forest by default)."""
        is_first, is_complete = self._is_unmoved, trajectories is None
        # A first step on a part of the rollouts moves the policy before the others were read: read all of them now.
        if is_first and not is_complete and self.proximal is None:
            self.proximal = self.learner.outputs(forest, ("logprob",))["logprob"]
        batch = self._batch(forest, credit, weight, None if is_first else self.proximal, trajectories)
        info = self.learner.step(batch.forest, batch.loss, active=batch.active, **self._options(batch))
        # A first step on all of them has read the proximal policy on its way; rows that were not run have no weight.
        if is_first and is_complete and self.proximal is None and not (info.empty or info.nonfinite):
            self.proximal = info.outputs["logprob"].nan_to_num(nan=0.0)
        return self._record(batch, info, info.outputs.get("logprob"))

    def logprob(self) -> Tensor:
        """[P] detached log-probs of all the step's rollouts under the current policy; one more forward pass.

        Before the first optimiser step, it is the proximal policy.
        """
        return self._current_outputs(self.forest, ("logprob",))["logprob"]

    def renew(self) -> None:
        """Make the current policy the proximal one of every later optimiser step: its ratio is exactly 1."""
        self.proximal = None

    def snapshot(self) -> dict[str, Tensor]:
        """Copy the parameters."""
        return self.learner.snapshot()

    def restore(self, snapshot: Mapping[str, Tensor]) -> None:
        """Set the parameters to a snapshot's."""
        self.learner.restore(snapshot)

    # ------------------------------------------------------------ for updates that take their own steps
    def evaluate(self, forest: Forest, credit: Tensor, weight: Tensor) -> StepInfo:
        """Evaluate the objective (`loss`) and the outputs of the current policy: a forward pass, no step.

        Before the first optimiser step, it is the proximal policy.
        """
        x = self._current_outputs(forest, self._names, **self.constant_arguments(self.signals))
        return StepInfo(empty=False, loss=float(self._batch(forest, credit, weight, self.proximal).loss(x)), outputs=x)

    def gradient(
        self, forest: Forest, credit: Tensor, weight: Tensor, slope: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Gradient at the current policy by parameter name, without a step: of the objective, or, with `slope` [P], of
        sum_p slope_p logprob_p."""
        short = [p.dtype for p in self.learner.optimiser.parameter_by_name.values() if torch.finfo(p.dtype).bits < 32]
        if short:
            raise ConfigError(
                f"this update moves parameters by less than {short[0]} can tell: set learner.dtype=float32, or train "
                "with another update"
            )
        if slope is not None:
            return self.learner.gradient(forest, lambda x: (slope * x["logprob"]).sum(), active=slope != 0)
        batch = self._batch(forest, credit, weight, self.proximal)
        return self.learner.gradient(forest, batch.loss, active=batch.active, **self._options(batch))

    def slopes(self, forest: Forest, credit: Tensor, weight: Tensor) -> dict[str, Tensor]:
        """dL/dx [P] of each output at the current policy: the objective's gradient is the sum over p of slope times
        gradient of the output."""
        x = self.learner.outputs(forest, self._names, **self.constant_arguments(self.signals))
        return gradient_of(self._batch(forest, credit, weight, self.proximal).loss, x)

    def record(self, forest: Forest, credit: Tensor, weight: Tensor, info: StepInfo) -> StepInfo:
        """Record an optimiser step that the update took by itself; its figures are of `info.outputs`."""
        return self._record(self._batch(forest, credit, weight, self.proximal), info, self.proximal)

    # ------------------------------------------------------------ internals of an optimiser step
    @property
    def _is_unmoved(self) -> bool:
        """True while no optimiser step has been taken; a skipped one has moved nothing."""
        return all(i.nonfinite for i in self.infos)

    def _batch(
        self,
        forest: Forest,
        credit: Tensor,
        weight: Tensor,
        proximal: Tensor | None,
        trajectories: Tensor | None = None,
    ) -> Batch:
        """Select the loss's inputs of these trajectories."""
        # A method that reads whole steps needs no copy of the forest.
        if trajectories is None:
            return Batch(self.method, forest, credit, weight, self.signals, proximal, self.step_number)
        entries = forest.entries_of(trajectories)
        return Batch(
            self.method,
            forest.select(trajectories),
            credit[entries],
            weight[entries],
            self.signals.select(forest, trajectories),
            None if proximal is None else proximal[entries],
            self.step_number,
        )

    def _options(self, batch: Batch) -> dict[str, Any]:
        """Options of the learner for this loss: names of outputs, which tokens couple, signals that outputs need."""
        return {"names": self._names, "couples": self.method.couples, **self.constant_arguments(batch.signals)}

    def constant_arguments(self, signals: Signals) -> dict[str, dict[str, Tensor]]:
        """The signals that outputs of the loss are computed with, where a term names any (`TermPart.constants`)."""
        return (
            {"constants": {name: signals[name] for name in self.method.output_signals}}
            if self.method.output_signals
            else {}
        )

    def _current_outputs(self, forest: Forest, names: Iterable[str], **options: Any) -> dict[str, Tensor]:
        """Outputs of the current policy; before the first optimiser step, it becomes the proximal one."""
        outputs = self.learner.outputs(forest, tuple(names), **options)
        if not self.infos and self.proximal is None:
            self.proximal = outputs["logprob"]
        return outputs

    def _record(self, batch: Batch, info: StepInfo, logprob_before: Tensor | None) -> StepInfo:
        """Record an optimiser step, its figures and, for the first one, the distance of the sampler.

        logprob_before  [P] log-probs before the step; None if the learner gives none
        """
        # Read before the step is recorded, which ends that state.
        is_first = self._is_unmoved
        self.infos.append(info)
        if info.nonfinite:
            # The term and token with the largest slope are where a user has to look: a loss of nan says nothing of its
            # cause.
            steepest = largest_slope(batch.method, batch.loss, info.outputs, batch.active, batch.forest)
            self.skip_reason = (
                f"the gradient is not finite (first in {info.nonfinite}); the largest slope is {steepest}: look at "
                "that reward and log-prob, or lower optim.lr"
            )
            warnings.warn(f"step {self.step_number}: no optimiser step was taken: {self.skip_reason}", stacklevel=4)
        elif not info.empty:
            self.metrics.append(batch.figures(info.outputs))
            # Later steps have moved the policy away from the sampler by themselves.
            if is_first and logprob_before is not None:
                self._compare_with_sampler(logprob_before, batch.forest)
        return info

    def _compare_with_sampler(self, logprob: Tensor, forest: Forest) -> None:
        """Measure the distance between learner and sampler on trained tokens, in `sampler_gap` and `mismatch_kl`.

        The gap is over tokens that were sampled in this step, in this context; its largest and its mean. The divergence
        is over tokens of any age: the mean of r - 1 - log r, r = proximal / behaviour, which estimates
        KL(behaviour || proximal).
        """
        node_P = forest.token_node[forest.path_token]
        is_comparable_P = forest.path_trainable
        # Tokens that were sampled under another context than the loss reads have other log-probs for that alone.
        if self.method.context == "trained":
            is_comparable_P = is_comparable_P & (forest.sampled_under[node_P] < 0)
        if LOGGED in forest.origin:  # their versions count another run's updates
            is_own_R = torch.tensor([origin != LOGGED for origin in forest.origin], dtype=torch.bool)
            is_comparable_P = is_comparable_P & forest.to_path(is_own_R, "R")
        log_ratio_P = logprob - forest.path_behaviour_logprob
        # Tokens of earlier versions differ by the updates in between, and not by a disagreement of the two programs.
        gap = log_ratio_P[is_comparable_P & (forest.policy_version[node_P] == self.step_number - 1)].abs()
        # An unknown sampler (a demonstration) has nan.
        gap = gap[gap.isfinite()]
        if gap.numel():
            self.sampler_gap, self.sampler_gap_mean = float(gap.max()), float(gap.mean())
        log_ratio = log_ratio_P[is_comparable_P & log_ratio_P.isfinite()]
        if log_ratio.numel():
            self.mismatch_kl = float((log_ratio.expm1() - log_ratio).mean())


# ---------------------------------------------------------------- gradients that are not finite
def largest_slope(
    method: Method,
    loss: Callable[[Mapping[str, Tensor], Method], Tensor],
    outputs: Mapping[str, Tensor],
    active: Tensor,
    forest: Forest,
) -> str:
    """Describe the largest derivative of one of the objective's terms in one of the policy's outputs, in words.

    loss     from the outputs, of a method with a single term
    outputs  [P, ...] by name;   active [P] bool: where the loss reads them

    A derivative that is nan counts as infinite.
    """
    steepest, description = -1.0, "of no term"
    for term, part in method.terms.items():
        # One term at a time: in the sum, an infinite slope of one hides the others.
        single_term = replace(method, terms={term: part})
        # Padding outside of the loss may be infinite: 0 times it would be nan in the gradient.
        x = {n: torch.where(active.view(-1, *[1] * (v.dim() - 1)), v, torch.zeros_like(v)) for n, v in outputs.items()}
        for name, slope in gradient_of(lambda live, method=single_term: loss(live, method), x).items():
            # Nan compares false with everything, so that a slope of nan would never be the largest.
            size = slope.abs().nan_to_num(nan=torch.inf, posinf=torch.inf).reshape(len(slope), -1).amax(1)
            if size.numel() and float(size.max()) > steepest:
                steepest, entry = float(size.max()), int(size.argmax())
                description = f"{steepest:.2g} of term {term!r} in {name} at {_token(forest, entry, x['logprob'])}"
    return description


def _token(forest: Forest, entry: int, logprob: Tensor) -> str:
    """Name an entry of P: its number in the rollout, rollout, task, and log-probs now and when sampled."""
    row = int(forest.path_trajectory[entry])
    number = entry - int((forest.path_trajectory == row).nonzero()[0]) + 1
    behaviour = float(forest.path_behaviour_logprob[entry])
    return (
        f"token {number} of rollout {forest.id[row]!r} of task {forest.task[row]!r} "
        f"(log-prob {float(logprob[entry]):.4g}, {behaviour:.4g} when sampled)"
    )
