"""Signals from the policy's log-probs: of inner layers (BuPO), over the vocabulary (ROVER), of the prompt (ProGRPO)."""

from __future__ import annotations

from typing import Annotated

import torch
from annotated_types import Ge, Interval
from torch import Tensor

from gxpo.forest.forest import Forest
from gxpo.forest.grouped import begins_of
from gxpo.parts.protocols import Learner, Output
from gxpo.parts.registry import part


@part("mean_logprob", stage="signal", gives={"start_mean_logprob": "P"})
def mean_logprob(forest: Forest, learner: Learner) -> Tensor:
    """The signal "start_mean_logprob" [P], nats: mean over the vocabulary of the log-probs at each action token.

    It is -log V less KL(uniform || policy), so at most -log V; by the policy at the start of the step. Costs a forward
    pass of the step.

    Source: ROVER, arXiv 2509.24981, where changes of it are the value of acting uniformly.
    """
    return learner.outputs(forest, ("mean_logprob",))["mean_logprob"]


@part("layer_logprob", stage="signal", gives=lambda layer, normed, **_: {Output("logprob", layer, normed=normed): "P"})
def layer_logprob(
    forest: Forest,
    learner: Learner,
    step: int,
    *,
    layer: Annotated[int, Ge(1)] | Annotated[float, Interval(gt=0, le=1)] = 0.15,
    steps: Annotated[int, Ge(0)] | None = None,
    normed: bool = True,
) -> Tensor:
    """Signal "logprob@LAYER" [P]: log-probs by softmax(head(norm(h))), h the hidden state after that layer
    ("unnormed_logprob@LAYER": softmax(head(h))), with the policy as it is at the start of the step; nan in every step
    after the first `steps`, which costs nothing.

    layer  from 1, or a share of the depth above 0, up to 1.0 (0.15 of 36 layers is layer 5; of 3, layer 1)
    steps  of the trainer, from the first; None: all
    normed whether the head reads the state after the final norm

    Costs a forward pass of the step while it lasts.
    """
    name = Output("logprob", layer, normed=normed)
    # nan means unknown to the parts that read it; the forward pass is saved.
    if steps is not None and step > steps:
        return torch.full((forest.n_entries,), torch.nan, dtype=torch.float64)
    return learner.outputs(forest, (name,))[name]


@part("prompt_confidence", stage="signal", gives={"prompt_confidence": "R"})
def prompt_confidence(forest: Forest, learner: Learner) -> Tensor:
    """The signal "prompt_confidence" [R]: geometric mean of the probabilities of the prompt's tokens.

    exp of the mean log-prob, at temperature 1 and by the policy at the start of the step, of every token before the
    trajectory's first action but the very first, which nothing predicts; 1 for a prompt of fewer than two tokens. Each
    distinct prompt goes through the model once.
    """
    forest.need_ids("the confidence of a prompt")
    prompts, prompt_R = prompts_of(forest)
    records = []
    # Prompts become actions after their first token, so that the learner gives their log-probs.
    for i, (node, policy) in enumerate(prompts):
        ids = forest.context(node)
        turn = {"action": ids[1:], "policy": policy}
        records.append({"schema": "gxpo.rollouts/1", "group": "", "id": str(i), "prompt": ids[:1], "turns": [turn]})
    prompt_forest = Forest.from_records(records)
    logprob = learner.outputs(prompt_forest, ("logprob",))["logprob"]
    n = len(prompts)
    # One more row, without tokens: mean 0 and confidence 1, for trajectories of short prompts.
    total = torch.zeros(n + 1, dtype=torch.float64).index_add_(0, prompt_forest.path_trajectory, logprob)
    mean = total / torch.bincount(prompt_forest.path_trajectory, minlength=n + 1).clamp_min(1)
    return mean.exp()[prompt_R]  # -1: the last row, which is 1


def prompts_of(forest: Forest) -> tuple[list[tuple[int, str]], Tensor]:
    """Distinct prompts as (node, policy), and the index of each trajectory's prompt, [R].

    The node is the last of the prompt (-1: none); the policy is that of the first action. The index of a trajectory
    without action tokens is -1.
    """
    begins = begins_of(forest.path_trajectory, forest.n_trajectories)
    has_action_R = begins.diff() > 0
    first = forest.token_node[forest.path_token[begins[:-1][has_action_R]]]
    n_policies = max(1, len(forest.policy_names))
    # One prompt under two policies is read twice: each has its own confidence.
    keys = (forest.parent[first] + 1) * n_policies + forest.policy[first]
    distinct, prompt_index = torch.unique(keys, return_inverse=True)
    prompt_R = torch.full((forest.n_trajectories,), -1, dtype=torch.int64)
    prompt_R[has_action_R] = prompt_index
    return [(k // n_policies - 1, forest.policy_names[k % n_policies]) for k in distinct.tolist()], prompt_R
