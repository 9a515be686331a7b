"""The learner with the step's method and signals bound to it: what an `Update` moves parameters with."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gxpo.errors import ConfigError
from gxpo.forest import Forest
from gxpo.pipeline import Method
from gxpo.protocols import PolicyTokens, StepInfo
from gxpo.signals import Signals
from gxpo.trainer.culprit import largest_slope


class BoundLearner:
    """Implements `protocols.StepRunner`.

    The proximal policy is the learner's at the start of the step. On the first optimiser step it is
    stop_gradient(current): the ratio is exactly 1 and costs no forward pass. Afterwards it is what that first step saw,
    or, where the first step saw a part of the rollouts only, a forward pass made before anything moved (`proximal`,
    where the step's signals have needed it already).
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
        self.infos: list[StepInfo] = []
        self.metrics: list[dict[str, float]] = []
        self.trouble = ""  # why the last of the optimiser steps that were skipped was
        self.sampler_gap = 0.0  # largest |proximal - behaviour| log-prob among the tokens of the first optimiser step
        # an output whose own signal is nan throughout is one that nobody reads in this step
        unread = {n for n in method.outputs if n.at and n in signals and bool(signals[n].isnan().all())}
        self._forward_names = tuple(n for n in dict.fromkeys((*method.outputs, "entropy")) if n not in unread)

    def step(self, forest: Forest, credit: Tensor, weight: Tensor, trajectories: Tensor | None = None) -> StepInfo:
        """One optimiser step on these trajectories (all of the forest by default)."""
        first = all(i.nonfinite for i in self.infos)  # a step that was skipped has moved nothing
        if first and trajectories is not None and self.proximal is None:
            self.proximal = self.learner.outputs(forest, ("logprob",))["logprob"]
        if trajectories is None:
            sub, entries, held = forest, torch.arange(forest.n_entries), self.signals
        else:
            sub, entries = forest.select(trajectories), forest.entries_of(trajectories)
            held = self.signals.select(forest, trajectories)
        credit, weight = credit[entries], weight[entries]

        below = None if first or self.proximal is None else self.proximal[entries]

        def policy(x: Mapping[str, Tensor]) -> PolicyTokens:
            return policy_tokens(x, sub, held, below)

        def loss(method: Method, x: Mapping[str, Tensor]) -> Tensor:
            return method.objective(sub, policy(x), credit, weight, held, self.step_number)

        active = self.method.active(sub, credit, weight, held)
        info = self.learner.step(
            sub,
            partial(loss, self.method),
            names=self._forward_names,
            couples=self.method.couples,
            active=active,
            **self.given(held),
        )
        self.infos.append(info)
        if info.nonfinite:
            self._skipped(info, largest_slope(self.method, loss, info.outputs, active, sub))
        elif not info.empty:
            x = info.outputs
            # rows without credit were not run; whatever stands for them is multiplied by zero
            filled = {name: torch.nan_to_num(v, nan=0.0) for name, v in x.items()}
            if first and trajectories is None and self.proximal is None:
                self.proximal = filled["logprob"]
            found = self.method.evaluate(sub, policy(filled), credit, weight, held, self.step_number)
            self.metrics.append(found.metrics | _observed(x, sub))
            if first:
                self.sampler_gap = self._sampler_gap(x["logprob"], sub)
        return info

    def _skipped(self, info: StepInfo, steepest: str) -> None:
        """Says that an optimiser step was not taken, and why."""
        self.trouble = (
            f"the gradient is not finite (first in {info.nonfinite}); the largest slope is {steepest}: look at that "
            "reward and log-prob, or lower update.lr"
        )
        warnings.warn(f"step {self.step_number}: no optimiser step was taken: {self.trouble}", stacklevel=4)

    def given(self, held: Signals) -> dict[str, dict[str, Tensor]]:
        """The signals that outputs of the loss are made with, where a term names any (`TermPart.given`)."""
        names = dict.fromkeys(n for term in self.method.terms.values() for n in getattr(term, "given", ()))
        return {"given": {name: held[name] for name in names}} if names else {}

    def _sampler_gap(self, logprob: Tensor, forest: Forest) -> float:
        """Largest difference to the sampler among trained tokens that it sampled in this step, in this context."""
        node = forest.token_node[forest.path_token]
        same = (forest.policy_version[node] == self.step_number - 1) & forest.path_trainable
        if self.method.context == "trained":
            same &= forest.sampled_under[node] < 0
        gap = (logprob - forest.path_behaviour_logprob)[same].abs()
        gap = gap[gap.isfinite()]
        return float(gap.max()) if gap.numel() else 0.0

    def logprob(self) -> Tensor:
        """[P] detached log-probs of all the step's rollouts by the policy as it is now; one more forward pass.

        Asked for before the first optimiser step, it is the proximal policy.
        """
        found = self.learner.outputs(self.forest, ("logprob",))["logprob"]
        if not self.infos and self.proximal is None:
            self.proximal = found
        return found

    def renew(self) -> None:
        """From here on the proximal policy of a step is the policy before it: its ratio is exactly 1."""
        self.proximal = None

    def snapshot(self) -> dict[str, Tensor]:
        """A copy of the parameters."""
        return self.learner.snapshot()

    def restore(self, snapshot: Mapping[str, Tensor]) -> None:
        """Set the parameters to a snapshot's."""
        self.learner.restore(snapshot)

    # ------------------------------------------------------------ for updates that take their own steps
    def evaluate(self, forest: Forest, credit: Tensor, weight: Tensor) -> StepInfo:
        """The objective (`loss`) and the outputs of the policy as it is now: a forward pass, no step.

        Asked for before the first step, it is the proximal policy.
        """
        x = self.learner.outputs(forest, self._forward_names, **self.given(self.signals))
        if not self.infos and self.proximal is None:
            self.proximal = x["logprob"]
        policy = policy_tokens(x, forest, self.signals, self.proximal)
        loss = self.method.objective(forest, policy, credit, weight, self.signals, self.step_number)
        return StepInfo(empty=False, loss=float(loss), outputs=x)

    def gradient(
        self, forest: Forest, credit: Tensor, weight: Tensor, slope: Tensor | None = None
    ) -> dict[str, Tensor]:
        """By parameter name, for the policy as it is now, without a step: of the objective, or, with `slope` [P], of
        sum_p slope_p logprob_p."""
        short = [p.dtype for p in self.learner.optimiser.named.values() if torch.finfo(p.dtype).bits < 32]
        if short:
            raise ConfigError(
                f"this update moves parameters by less than {short[0]} can tell: set learner.dtype=float32, or train "
                "with another update"
            )
        if slope is not None:
            return self.learner.gradient(forest, lambda x: (slope * x["logprob"]).sum(), active=slope != 0)

        def loss(x: Mapping[str, Tensor]) -> Tensor:
            policy = policy_tokens(x, forest, self.signals, self.proximal)
            return self.method.objective(forest, policy, credit, weight, self.signals, self.step_number)

        return self.learner.gradient(
            forest,
            loss,
            names=self._forward_names,
            couples=self.method.couples,
            active=self.method.active(forest, credit, weight, self.signals),
            **self.given(self.signals),
        )

    def slopes(self, forest: Forest, credit: Tensor, weight: Tensor) -> dict[str, Tensor]:
        """dL/dx of each output [P] for the policy as it is now: the objective's gradient is the sum of slope times
        gradient of the output."""
        x = self.learner.outputs(forest, self._forward_names, **self.given(self.signals))
        live = {name: value.to(torch.float64).requires_grad_() for name, value in x.items()}
        policy = policy_tokens(live, forest, self.signals, self.proximal)
        loss = self.method.objective(forest, policy, credit, weight, self.signals, self.step_number)
        found = torch.autograd.grad(loss, list(live.values()), allow_unused=True)
        return {n: torch.zeros_like(x[n]) if g is None else g for n, g in zip(live, found, strict=True)}

    def record(self, forest: Forest, credit: Tensor, weight: Tensor, info: StepInfo) -> StepInfo:
        """Counts a step that the update has taken by itself; its figures are of `info.outputs`."""
        first = all(i.nonfinite for i in self.infos)  # a step that was skipped has moved nothing
        self.infos.append(info)
        if info.nonfinite:

            def loss(method: Method, x: Mapping[str, Tensor]) -> Tensor:
                policy = policy_tokens(x, forest, self.signals, self.proximal)
                return method.objective(forest, policy, credit, weight, self.signals, self.step_number)

            active = self.method.active(forest, credit, weight, self.signals)
            self._skipped(info, largest_slope(self.method, loss, info.outputs, active, forest))
        elif not info.empty:
            policy = policy_tokens(info.outputs, forest, self.signals, self.proximal)
            found = self.method.evaluate(forest, policy, credit, weight, self.signals, self.step_number)
            self.metrics.append(found.metrics | _observed(info.outputs, forest))
            if first and self.proximal is not None:
                self.sampler_gap = self._sampler_gap(self.proximal, forest)
        return info


def policy_tokens(x: Mapping[str, Tensor], forest: Forest, signals: Signals, proximal: Tensor | None) -> PolicyTokens:
    """The outputs, and what is known of the other policies; proximal None: stop_gradient(current)."""
    return PolicyTokens(
        x["logprob"],
        forest.path_behaviour_logprob,
        signals.get("reference_logprob"),
        x.get("entropy"),
        proximal_logprob=x["logprob"].detach() if proximal is None else proximal,
        value=x.get("value"),
        outputs=x,
    )


def _observed(x: Mapping[str, Tensor], forest: Forest) -> dict[str, float]:
    """Mean entropy (nats) of the trained tokens that went through the model."""
    entropy = x["entropy"][forest.path_trainable]
    entropy = entropy[entropy.isfinite()]
    return {"entropy": float(entropy.mean())} if entropy.numel() else {}
