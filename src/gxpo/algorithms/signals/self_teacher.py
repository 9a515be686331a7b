"""Self-distillation teacher (SDPO): the EMA policy conditioned on a correct rollout of the group."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import torch
from annotated_types import Ge, Interval
from torch import Tensor

from gxpo.algorithms.signals.base import OwnModel, SignalTools
from gxpo.base.errors import ConfigError
from gxpo.parts.protocols import Output
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import Signals


def first_other(good: Tensor, group: Tensor) -> Tensor:
    """First other good trajectory of each one's group, [R] int64; -1 where there is none.

    good [R] bool, group [R] ids >= 0

    >>> first_other(torch.tensor([False, True, True, False]), torch.tensor([0, 0, 0, 1])).tolist()
    [1, 2, 1, -1]
    """
    n, index = len(good), torch.arange(len(good))
    groups = int(group.max()) + 1 if n else 0

    def least(where: Tensor) -> Tensor:
        smallest = torch.full((groups,), n).scatter_reduce_(0, group[where], index[where], "amin")
        return smallest[group]

    first = least(good)
    # The first good one of a group is shown the second, and is shown to all others.
    other_R = torch.where(index == first, least(good & (index != first)), first)
    return torch.where(other_R < n, other_R, -1)


def with_peer_shown(
    forest: Forest, rows: Tensor, peer: Tensor, prompts: Sequence[Sequence[int] | None] | None = None
) -> tuple[Forest, Tensor]:
    """Forest of some trajectories with a peer's rollout in their context, and each one's row in `forest`.

    rows     [K] distinct trajectories, peer [K] of each
    prompts  of each peer, in the order of `torch.unique`: a prompt that replaces that of the trajectories, which have
             one turn. None (all, or one): the peer's last action, with its whole context, goes before each of their
             contexts, token ids as they are

    Trajectories with one peer still share their stored tokens, and a peer's rollout is stored once.
    For reading a model only: prompts stay what they were, so the forest can't be written as records.
    """
    from gxpo.forest.forest import ACTION, Forest

    distinct_peers = torch.unique(peer)
    prompt_of_peer = [None] * len(distinct_peers) if prompts is None else prompts
    opening_tokens = [
        forest.context(int(forest.last_action[p])) if ids is None else list(ids)
        for p, ids in zip(distinct_peers.tolist(), prompt_of_peer, strict=True)
    ]
    # Each opening is stored once, as a trajectory of its own, whose one action token is dropped below.
    openings = Forest.from_completions(opening_tokens, [[[0]] for _ in opening_tokens])
    rows_by_peer = [rows[peer == p] for p in distinct_peers.tolist()]
    pieces = [forest.select(rows_of_peer) for rows_of_peer in rows_by_peer]
    joint_forest = Forest.concat([openings, *pieces])
    parent, prompt, node_offset = joint_forest.parent.clone(), joint_forest.prompt_node.clone(), openings.n_nodes
    # Roots of a piece are hung below its peer's opening; under a new prompt its first actions are, so that the
    # old prompt is left out.
    for piece, opening, ids in zip(pieces, openings.prompt_node.tolist(), prompt_of_peer, strict=True):
        is_reparented = piece.parent < 0
        if ids is not None:
            is_reparented = (piece.kind == ACTION) & (is_reparented | (piece.kind[piece.parent.clamp_min(0)] != ACTION))
            prompt[(prompt >= node_offset) & (prompt < node_offset + piece.n_nodes)] = opening
        parent[node_offset + is_reparented.nonzero().squeeze(1)] = opening
        node_offset += piece.n_nodes
    # The openings' own trajectories come first and are no rollouts.
    kept_rows = torch.arange(len(opening_tokens), joint_forest.n_trajectories)
    return joint_forest.replace(parent=parent, prompt_node=prompt).select(kept_rows), torch.cat(rows_by_peer)


@part("self_teacher", stage="signal")
@dataclass(frozen=True)
class SelfTeacher(OwnModel):
    """Teacher distribution at each action token of the rollouts that have a correct peer (SDPO): "teacher_ids" [P, K],
    its `top_k` likeliest ids, "teacher_logprob" [P, K + 1], their log-probs and that of all others together, and
    "teacher_entropy" [P] (nats); where there is no teacher -1, -inf and nan.

    The teacher is an average of the policy over the steps: teacher <- teacher + rate (policy - teacher) after each
    step's update, at first the policy. It reads the rollout's own tokens under a prompt that shows it the first right
    rollout of the group that is not that rollout itself. Rollouts without such a peer have no teacher. `success` says
    what is right, never the shaped outcome.

    rate      0: the policy at the beginning of the run; 1: the policy at the start of the step
    top_k     no more than the vocabulary has; of a support, its size
    rollouts  "all" rollouts that have a peer, or those that have "failed"
    template  the prompt, of a chat the user's last message: {prompt} is the old one, {solution} the peer's text.
              "" for a policy that reads no instructions: the peer's whole rollout, with its prompt, goes before the
              prompt, token ids as they are. The same holds in episodes, where a prompt is given as token ids, and where
              a rollout's context is more than its task's prompt
    hidden_pattern  regular expression of parts left out of the peer's text, by default thoughts; "": none

    Temperature and support are the rollout's. Costs a forward pass over the rollouts that have a peer, and a second
    model in memory and in the checkpoint; K + 1 numbers a token.

    Source: SDPO, arXiv 2601.20802, and its code (rate 0.05, top 100, first success other than itself, in the user's
    message, without text between think tags). There feedback of the environment can stand for a right answer.
    """

    rate: Annotated[float, Interval(ge=0, le=1)] = 0.05
    top_k: Annotated[int, Ge(1)] = 100
    rollouts: Literal["all", "failed"] = "all"
    template: str = "{prompt}\n\nCorrect solution:\n\n{solution}\n\nNow solve the question correctly."
    hidden_pattern: str = r"<think>.*?</think>\s*"

    provides = ("teacher_ids", "teacher_logprob", "teacher_entropy")

    def __post_init__(self) -> None:
        placeholders = {"prompt": "{prompt}", "solution": "{solution}"}
        try:
            wrong = bool(self.template) and any(
                x not in self.template.format(**placeholders) for x in placeholders.values()
            )
            re.compile(self.hidden_pattern)
        except (ValueError, LookupError, re.error) as error:
            raise ConfigError(f"signal self_teacher: template or hide can't be read: {error}") from None
        if wrong:
            raise ConfigError(f"signal.self_teacher.template is {self.template!r}: it has {{prompt}} and {{solution}}")

    def compute(self, forest: Forest, signals: Signals, tools: SignalTools) -> dict[str, Tensor]:
        forest.need_ids("a teacher that is shown a right answer")
        forest.need_verdicts("signal self_teacher")
        is_correct = forest.scored & (forest.success > 0.5)
        peer = first_other(is_correct, forest.ids("group", axis="R"))
        is_taught = forest.scored & (peer >= 0)
        # Successes need no correction, only failures are taught.
        if self.rollouts == "failed":
            is_taught &= forest.success <= 0.5
        rows, n = is_taught.nonzero().squeeze(1), forest.n_entries
        # No group has a right rollout to show: no teacher anywhere, in the shapes of a step that has.
        if not len(rows):
            return {
                "teacher_ids": torch.full((n, 1), -1),
                "teacher_logprob": torch.full((n, 2), -torch.inf, dtype=torch.float64),
                "teacher_entropy": torch.full((n,), torch.nan, dtype=torch.float64),
            }
        # The tokens stay the rollout's own: only the context before them shows the right answer.
        teacher_forest, order = with_peer_shown(
            forest, rows, peer[rows], self._prompts(forest, rows, peer[rows], tools)
        )
        names = (Output("likeliest", self.top_k), Output("likeliest_logprob", self.top_k), Output("entropy"))
        outputs_by_name = self.model.outputs(teacher_forest, names)
        ids, logprob, entropy = (outputs_by_name[name] for name in names)
        entries = forest.entries_of(order)

        def placed(x: Tensor, blank: float) -> Tensor:
            return x.new_full((n, *x.shape[1:]), blank).index_copy(0, entries, x)

        return {
            "teacher_ids": placed(ids.to(torch.int64), -1),
            "teacher_logprob": placed(logprob, -torch.inf),
            "teacher_entropy": placed(entropy, torch.nan),
        }

    def _prompts(self, forest: Forest, rows: Tensor, peer: Tensor, tools: SignalTools) -> list[Sequence[int] | None]:
        """Prompts that show each of the sorted peers; None where the peer's rollout goes before the prompt instead."""
        prompts: list[Sequence[int] | None] = []
        for peer_row in torch.unique(peer).tolist():
            task_prompt = tools.reword(forest.task[peer_row], "{prompt}", {}) if self.template else None
            last_action = forest.last_action[rows[peer == peer_row]]
            # A prompt can only be rewritten where it is all that the rollout was written under.
            contexts = [forest.context(node) for node in forest.parent[last_action[last_action >= 0]].tolist()]
            if task_prompt is None or any(ids != list(task_prompt) for ids in contexts):
                prompts.append(None)
                continue
            text = tools.decode(forest.token[forest.path_token[forest.path_of(peer_row)]].tolist())
            solution = re.sub(self.hidden_pattern, "", text, flags=re.DOTALL) if self.hidden_pattern else text
            prompts.append(tools.reword(forest.task[peer_row], self.template, {"solution": solution}))
        return prompts

    def learn(self, forest: Forest, signals: Signals, tools: SignalTools) -> dict[str, float]:
        self.model.follow(tools.learner, self.rate)
        return {}

    def tensors(self) -> dict[str, Tensor]:
        return {name: x.cpu() for name, x in self.model.snapshot().items()} if "model" in self.memory else {}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        self.model.restore(tensors)
