"""Slow-fast update (SFPO): fast steps on one batch, interpolation back towards the start, a slow correction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, pstdev
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge, Interval
from torch import Tensor

from gxpo.base.errors import CheckpointError, GxpoError
from gxpo.forest.forest import Forest
from gxpo.learning.base import UpdatePart
from gxpo.parts.protocols import StepInfo, StepRunner
from gxpo.parts.registry import part

FLOOR = 1e-9  # added to the standard deviation of the entropies


def reposition(start: Mapping[str, Tensor], end: Mapping[str, Tensor], alpha: float) -> dict[str, Tensor]:
    """start + alpha (end - start) for each named tensor, exactly `start` at alpha 0 and exactly `end` at 1.

    >>> reposition({"w": torch.tensor([1.0])}, {"w": torch.tensor([0.5])}, 0.5)
    {'w': tensor([0.7500])}
    """
    return {name: torch.lerp(start[name], end[name], alpha) for name in start}


def surge(entropies: Sequence[float], window: int) -> float:
    """Z-score of the newest of `entropies` (nats) among the last `window` of them, itself included; 0 before there are
    as many.

    z = (H_n - mean) / (population std + 1e-9)
    """
    recent = list(entropies)[-window:]
    if len(recent) < window or max(recent) == min(recent):
        return 0.0
    return (recent[-1] - fmean(recent)) / (pstdev(recent) + FLOOR)


@part("slow_fast", stage="update")
@dataclass(frozen=True)
class SlowFast(UpdatePart):
    """Slow-fast (SFPO): `inner_steps` steps to theta_K, back to theta_0 + alpha (theta_K - theta_0), one more step.

    Every step is on all of the step's rollouts. alpha 1 is inner_steps + 1 plain steps, inner_steps 0 one plain step.

    inner_steps  K, fast steps
    alpha        how far of the way is kept, 0 to 1
    window       steps over which the entropy is watched
    threshold    once the entropy of a step lies this many standard deviations above the mean of its window (`surge`),
                 all later steps are single plain steps, for good

    The ratio's denominator is the policy at theta_0 throughout, so the fast steps and the correction are clipped as
    off-policy steps are. Adam's moments and its count of steps are not pulled back: they have seen K + 1 gradients.
    The entropy is the mean over trained tokens in the correction's forward pass, as in the reference; a step that
    moved nothing is left out. The learning-rate schedule counts optimiser steps, where the reference's counts steps of
    the trainer; after the surge it therefore runs slower than planned.

    Source: SFPO, arXiv 2510.04072, sections on the three stages and the schedule of alpha; reference code.
    """

    sets_parameters: ClassVar[bool] = True

    inner_steps: Annotated[int, Ge(0)] = 3
    alpha: Annotated[float, Interval(ge=0, le=1)] = 0.8
    window: Annotated[int, Ge(2)] = 30  # it has a spread
    threshold: float = 1.0
    _memory: dict[str, Any] = field(
        init=False, repr=False, compare=False, default_factory=lambda: {"entropies": [], "plain": False}
    )

    @property
    def plain(self) -> bool:
        """True once the entropy has surged: every later step is a single plain one."""
        return self._memory["plain"]

    def optimiser_steps(self, groups: int) -> int:
        """Number of optimiser steps in a training step, before the entropy has risen."""
        return self.inner_steps + 1

    def run(self, forest: Forest, credit: Tensor, weight: Tensor, learner: StepRunner) -> list[StepInfo]:
        entropies = self._memory["entropies"]
        # once the entropy surges, the rest of the run goes by single steps (the paper's switch)
        if not self.plain and surge(entropies, self.window) >= self.threshold:
            self._memory["plain"] = True
        fast_steps = 0 if self.plain else self.inner_steps
        start = learner.snapshot() if fast_steps else {}
        infos: list[StepInfo] = []
        for _ in range(fast_steps):
            infos.append(learner.step(forest, credit, weight))
            if infos[-1].empty:  # no token has a coefficient, and none will have one
                return infos
        if fast_steps:
            # reposition: between the start and the end of the fast steps
            learner.restore(reposition(start, learner.snapshot(), self.alpha))
        # slow correction: one step at that point, on the same batch
        infos.append(learner.step(forest, credit, weight))
        entropies += _entropy(infos[-1], forest)
        del entropies[: -self.window]
        return infos

    # ------------------------------------------------------------ memory
    def state_dict(self) -> dict[str, Any]:
        return {"entropies": list(self._memory["entropies"]), "plain": self.plain}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if set(state) != set(self._memory):
            raise CheckpointError(
                f"the update's part of the checkpoint has {sorted(state)}: is it of update=slow_fast?"
            )
        self._memory.update(entropies=list(state["entropies"]), plain=bool(state["plain"]))


def _entropy(info: StepInfo, forest: Forest) -> list[float]:
    """Mean entropy of the trained tokens that went through the model, if any did and the step was taken."""
    if info.empty or info.nonfinite:
        return []
    if "entropy" not in info.outputs:
        raise GxpoError("update=slow_fast watches the entropy, but the learner's steps do not report it")
    entropy_P = info.outputs["entropy"]
    trained_entropy = entropy_P[forest.path_trainable & entropy_P.isfinite()]
    return [float(trained_entropy.mean())] if trained_entropy.numel() else []
