"""Update in two steps: replayed rollouts first, then fresh ones (PIPO)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gxpo.forest import Forest
from gxpo.learners.update import UpdatePart
from gxpo.protocols import StepInfo, StepRunner
from gxpo.registry import part


@part("replayed_first", stage="update")
@dataclass(frozen=True)
class ReplayedFirst(UpdatePart):
    """One step on the rollouts of origin "replay", then one on all others; each is a mean over its own rollouts.

    Where nothing was replayed, or no replayed rollout has an advantage, there is only the second step. With
    `objective.ratio_over: behaviour` each step takes its importance ratio against the rollout policy. Source:
    PIPO, arXiv 2604.00860 (retrospective step, then base step).
    """

    def optimiser_steps(self, groups: int) -> int:
        """Number of optimiser steps in a training step."""
        return 2

    def run(self, forest: Forest, credit: Tensor, weight: Tensor, learner: StepRunner) -> list[StepInfo]:
        replayed = torch.tensor([origin == "replay" for origin in forest.origin], dtype=torch.bool)
        if not bool(replayed.any()):
            return [learner.step(forest, credit, weight)]
        infos = []
        if bool((credit * weight)[forest.to_path(replayed, "R")].any()):
            infos.append(learner.step(forest, credit, weight, replayed.nonzero().squeeze(1)))
        fresh = (~replayed).nonzero().squeeze(1)
        return [*infos, learner.step(forest, credit, weight, fresh)]
