"""Signals from the policy's log-probs: of inner layers (BuPO), over the vocabulary (ROVER), of the prompt (ProGRPO)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import torch
from annotated_types import Ge, Interval
from torch import Tensor

from gxpo.algorithms.signals.base import SignalPart, SignalTools
from gxpo.algorithms.signals.self_teacher import with_peer_shown
from gxpo.forest import grouped
from gxpo.forest.forest import Forest
from gxpo.forest.grouped import begins_of
from gxpo.parts.protocols import Learner, Output
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import Signals


@part("mean_logprob", stage="signal", gives={"start_mean_logprob": "P"})
def mean_logprob(forest: Forest, learner: Learner) -> Tensor:
    """The signal "start_mean_logprob" [P], nats: mean over the vocabulary of the log-probs at each action token.

    It is -log V less KL(uniform || policy), so at most -log V; by the policy at the start of the step. Costs a forward
    pass of the step.

    Source: ROVER, arXiv 2509.24981, where changes of it are the value of acting uniformly.
    """
    return learner.outputs(forest, ("mean_logprob",))["mean_logprob"]


@part(
    "layer_logprob",
    stage="signal",
    gives=lambda layer, final_norm, **_: {Output("logprob", layer, normed=final_norm): "P"},
)
def layer_logprob(
    forest: Forest,
    learner: Learner,
    step: int,
    *,
    layer: Annotated[int, Ge(1)] | Annotated[float, Interval(gt=0, le=1)] = 0.15,
    steps: Annotated[int, Ge(0)] | None = None,
    final_norm: bool = True,
) -> Tensor:
    """Signal "logprob@LAYER" [P]: log-probs by softmax(head(norm(h))), h the hidden state after that layer
    ("unnormed_logprob@LAYER": softmax(head(h))), with the policy as it is at the start of the step; nan in every step
    after the first `steps`, which costs nothing.

    layer  from 1, or a share of the depth above 0, up to 1.0 (0.15 of 36 layers is layer 5; of 3, layer 1)
    steps  of the trainer, from the first; None: all
    final_norm  whether the head reads the state after the final norm

    Costs a forward pass of the step while it lasts.
    """
    name = Output("logprob", layer, normed=final_norm)
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


@torch.no_grad()
def dominance_rank(peak: Tensor, mean: Tensor, group: Tensor, where: Tensor) -> Tensor:
    """Rank / (N - 1) by the number of the group's N counting members that each one dominates, 1 for the most.

    peak, mean  [R] nats: i dominates j where peak_i > peak_j and mean_i < mean_j (by more than 1e-5 nats)
    where       [R] bool, counting members; the others have 0, and so has one alone

    Members that dominate equally many share their mean rank. [R] float64. Source: R^3, arXiv 2601.19620.

    >>> peak, mean = torch.tensor([2.0, 1.5, 2.2, 1.0]), torch.tensor([0.5, 0.6, 0.7, 0.4])
    >>> one = torch.zeros(4, dtype=torch.int64)
    >>> dominance_rank(peak, mean, one, one == 0).tolist()
    [1.0, 0.3333333333333333, 0.3333333333333333, 0.3333333333333333]
    """
    # Entropies of two forward passes differ by rounding: settled, or that would decide who dominates.
    high, low = (grouped.settled(x.to(torch.float64), group, absolute=grouped.FORWARD) for x in (peak, mean))
    is_counted_R = where & (group >= 0)
    pairs = (group[:, None] == group) & is_counted_R[:, None] & is_counted_R
    n_dominated = (pairs & (high[:, None] > high) & (low[:, None] < low)).sum(1)
    return grouped.rank(n_dominated, group, is_counted_R) / (grouped.count(group, is_counted_R) - 1).clamp_min(1)


@part("structural_entropy", stage="signal", gives={"structural_rank": "R"})
def structural_entropy(
    forest: Forest, entropy: Tensor, *, share: Annotated[float, Interval(gt=0, le=1)] = 0.2
) -> Tensor:
    """The signal "structural_rank" [R]: `dominance_rank` among the group's truncated, scored and compared answers.

    share  of an answer's trained tokens, rounded down, at least one: their largest entropies make up its peak

    Entropies are the policy's at the start of the step. Answers that end by themselves have 0.
    Source: R^3, arXiv 2601.19620.
    """
    n = forest.n_trajectories
    peak, mean = torch.zeros(n, dtype=torch.float64), torch.zeros(n, dtype=torch.float64)
    # Answers that end by themselves are judged by their verdict; only truncated ones are ranked.
    is_truncated_R = forest.truncated & forest.scored & forest.compared & (forest.lengths() > 0)
    for r in is_truncated_R.nonzero().squeeze(1).tolist():
        rows = forest.path_of(r)
        entropies = entropy[rows[forest.path_trainable[rows]]].to(torch.float64)
        peak[r], mean[r] = entropies.topk(max(1, int(share * len(entropies)))).values.mean(), entropies.mean()
    return dominance_rank(peak, mean, forest.ids("group", axis="R"), is_truncated_R)


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
        prompts = {task: tools.reword(task, "{prompt}", {}) for task in dict.fromkeys(forest.task)}
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
