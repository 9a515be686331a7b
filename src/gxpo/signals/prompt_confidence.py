"""Prompt confidence: geometric mean of the token probabilities of the prompt (ProGRPO)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo.forest import Forest
from gxpo.registry import part
from gxpo.signals.base import SignalPart, SignalTools
from gxpo.trees import begins_of

if TYPE_CHECKING:
    from gxpo.protocols import Signals


def prompts_of(forest: Forest) -> tuple[list[tuple[int, str]], Tensor]:
    """Distinct prompts as (node, policy), and the index of each trajectory's prompt, [R].

    The node is the last of the prompt (-1: none); the policy is that of the first action. A trajectory
    without action tokens has -1.
    """
    begins = begins_of(forest.path_trajectory, forest.n_trajectories)
    has = begins.diff() > 0
    first = forest.token_node[forest.path_token[begins[:-1][has]]]
    n_policies = max(1, len(forest.policy_names))
    keys = (forest.parent[first] + 1) * n_policies + forest.policy[first]
    distinct, place = torch.unique(keys, return_inverse=True)
    which = torch.full((forest.n_trajectories,), -1, dtype=torch.int64)
    which[has] = place
    return [(k // n_policies - 1, forest.policy_names[k % n_policies]) for k in distinct.tolist()], which


@part("prompt_confidence", stage="signal")
@dataclass(frozen=True)
class PromptConfidence(SignalPart):
    """The signal "prompt_confidence" [R]: geometric mean of the probabilities of the prompt's tokens.

    exp of the mean log-prob, at temperature 1 and by the policy at the start of the step, of every token before the
    trajectory's first action but the very first, which nothing predicts; 1 for a prompt of fewer than two tokens. Each
    distinct prompt goes through the model once.
    """

    provides = ("prompt_confidence",)
    axes = {"prompt_confidence": "R"}  # noqa: RUF012  never changed

    def compute(self, forest: Forest, signals: Signals, tools: SignalTools) -> dict[str, Tensor]:
        forest.need_ids("the confidence of a prompt")
        prompts, which = prompts_of(forest)
        records = []
        for i, (node, policy) in enumerate(prompts):
            ids = forest.context(node)
            turn = {"action": ids[1:], "policy": policy}
            records.append({"schema": "gxpo.rollouts/1", "group": "", "id": str(i), "prompt": ids[:1], "turns": [turn]})
        asked = Forest.from_records(records)
        logprob = tools.learner.outputs(asked, ("logprob",))["logprob"]
        n = len(prompts)
        total = torch.zeros(n + 1, dtype=torch.float64).index_add_(0, asked.path_trajectory, logprob)
        mean = total / torch.bincount(asked.path_trajectory, minlength=n + 1).clamp_min(1)
        return {"prompt_confidence": mean.exp()[which]}  # -1: the last row, which is 1
