"""Hint reliance (HiLL): how much less likely an answer is without the hint that it was written under."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo.algorithms.signals.base import SignalPart, SignalTools
from gxpo.algorithms.signals.self_teacher import with_peer_shown
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import Signals


@part("hint_reliance", stage="signal")
@dataclass(frozen=True)
class HintReliance(SignalPart):
    """The signal "reliance" [R]: mean log-prob of an answer's tokens under the task's own prompt, less that under the
    prompt with a critique or hint that it was written under (nats a token); nan for other trajectories.

    Below 0 the answer relies on the hint. Of trajectories whose info names a "critique" (rollout `critique`), with the
    policy at the start of the step; nan, too, where a prompt can't be rewritten. Costs a forward pass over these.

    Source: HiLL, its hinter_utils.py and hill_ray_trainer.py.
    """

    needs = ("proximal_logprob",)
    provides = ("reliance",)
    axes = {"reliance": "R"}  # noqa: RUF012

    def compute(self, forest: Forest, signals: Signals, tools: SignalTools) -> dict[str, Tensor]:
        forest.need_ids("a policy that reads answers under another prompt")
        reliance_R = torch.full((forest.n_trajectories,), torch.nan, dtype=torch.float64)
        prompts = {task: tools.asked(task, "{prompt}", {}) for task in dict.fromkeys(forest.task)}
        rows = [
            r
            for r, (info, task) in enumerate(zip(forest.info, forest.task, strict=True))
            if "critique" in info and prompts[task] is not None
        ]
        if not rows:
            return {"reliance": reliance_R}
        # the first answer of a task stands for its prompt
        first_row = {forest.task[r]: r for r in reversed(rows)}
        peer = torch.tensor([first_row[forest.task[r]] for r in rows])
        plain_prompts = [prompts[forest.task[p]] for p in torch.unique(peer).tolist()]
        plain, order = with_peer_shown(forest, torch.tensor(rows), peer, plain_prompts)
        plain_logprob = tools.learner.outputs(plain, ("logprob",))["logprob"].to(torch.float64)
        entries = forest.entries_of(order)
        difference = plain_logprob - signals["proximal_logprob"][entries].to(torch.float64)
        owner = forest.path_trajectory[entries]
        total = torch.zeros_like(reliance_R).index_add_(0, owner, difference)
        n_tokens = torch.bincount(owner, minlength=forest.n_trajectories)
        return {"reliance": torch.where(n_tokens > 0, total / n_tokens.clamp_min(1), torch.nan)}
