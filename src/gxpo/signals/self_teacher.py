"""The policy's own past, shown a right answer of another rollout, as a teacher of the policy's tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from gxpo.errors import ConfigError, GxpoError, one_of
from gxpo.signals.base import SignalPart, SignalTools

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


def first_other(good: Tensor, group: Tensor) -> Tensor:
    """[R] int64: the first good trajectory of each one's group that is not itself, -1 where there is none.

    good [R] bool, group [R] ids >= 0

    >>> first_other(torch.tensor([False, True, True, False]), torch.tensor([0, 0, 0, 1])).tolist()
    [1, 2, 1, -1]
    """
    n, index = len(good), torch.arange(len(good))
    groups = int(group.max()) + 1 if n else 0

    def least(where: Tensor) -> Tensor:
        found = torch.full((groups,), n).scatter_reduce_(0, group[where], index[where], "amin")
        return found[group]

    first = least(good)
    other = torch.where(index == first, least(good & (index != first)), first)
    return torch.where(other < n, other, -1)


def shown(forest: Forest, rows: Tensor, peer: Tensor) -> tuple[Forest, Tensor]:
    """A forest of these trajectories, each of its contexts opened by all that its peer's last action was written
    under, and that action; and the row of `forest` that each of its trajectories is.

    rows [K] distinct trajectories, peer [K] of each. Token ids are taken as they are, nothing is tokenised again. What
    the given trajectories share they still share where their peer is the same, and a peer's tokens stand there once.
    For reading a model only: prompts stay what they were, so the forest can't be written as records.
    """
    from gxpo.forest import Forest

    last = torch.unique(peer)
    told = [forest.context(int(forest.last_action[p])) for p in last.tolist()]
    openings = Forest.from_completions(told, [[[0]] for _ in told])  # of one token each, which is left out again
    order = [rows[peer == p] for p in last.tolist()]
    pieces = [forest.select(mine) for mine in order]
    whole = Forest.concat([openings, *pieces])
    parent, at = whole.parent.clone(), openings.n_nodes
    for piece, opening in zip(pieces, openings.prompt_node.tolist(), strict=True):
        parent[at + (piece.parent < 0).nonzero().squeeze(1)] = opening
        at += piece.n_nodes
    own = torch.arange(len(told), whole.n_trajectories)
    return whole.replace(parent=parent).select(own), torch.cat(order)


@dataclass(frozen=True)
class SelfTeacher(SignalPart):
    """What the teacher would have said at each action token of the rollouts that it can correct: "teacher_ids" [P, K],
    its `top_k` likeliest ids, "teacher_logprob" [P, K + 1], their log-probs and that of all others together, and
    "teacher_entropy" [P] (nats); where there is no teacher -1, -inf and nan.

    The teacher is an average of the policy over the steps: teacher <- teacher + rate (policy - teacher) after each
    step's update, at first the policy. It reads the rollout's own tokens, after the whole of the first right rollout of
    the group that is not that rollout itself, with its prompt; then the prompt comes again. Rollouts without such a
    peer have no teacher. `success` says what is right, never the shaped outcome.

    rate   0: the policy at the beginning of the run; 1: the policy at the start of the step
    top_k  no more than the vocabulary has; of a support, its size
    of     "all" rollouts that have a peer, or those that have "failed"

    Temperature and support are the rollout's. Costs a forward pass over the rollouts that have a peer, and a second
    model in memory and in the checkpoint; K + 1 numbers a token.

    Source: SDPO, arXiv 2601.20802, and its code (rate 0.05, top 100, first success other than itself). There the right
    answer is put into the user's message, without its thinking, and feedback of the environment can stand for it.
    """

    rate: float = 0.05
    top_k: int = 100
    of: Literal["all", "failed"] = "all"
    memory: dict[str, Any] = field(init=False, repr=False, compare=False, default_factory=dict)

    provides = ("teacher_ids", "teacher_logprob", "teacher_entropy")

    def __post_init__(self) -> None:
        one_of("signal.self_teacher.of", self.of, ("all", "failed"))
        if not (0 <= self.rate <= 1 and self.top_k >= 1):
            raise ConfigError(
                f"signal self_teacher: rate ({self.rate}) is from 0 to 1, top_k ({self.top_k}) at least 1"
            )

    def bind(self, tools: SignalTools) -> None:
        self.memory["model"] = tools.learner.beside(lr=0.0)

    @property
    def model(self) -> Any:
        """The teacher, a learner."""
        if "model" not in self.memory:
            raise GxpoError("the teacher has no model yet: bind the part to the run's learner first")
        return self.memory["model"]

    def compute(self, forest: Forest, signals: Signals, tools: SignalTools) -> dict[str, Tensor]:
        forest.need_ids("a teacher that is shown a right answer")
        forest.need_verdicts("signal self_teacher")
        good = forest.scored & (forest.success > 0.5)
        peer = first_other(good, forest.ids("group", axis="R"))
        taught = forest.scored & (peer >= 0)
        if self.of == "failed":
            taught &= forest.success <= 0.5
        rows, n = taught.nonzero().squeeze(1), forest.n_entries
        if not len(rows):
            return {
                "teacher_ids": torch.full((n, 1), -1),
                "teacher_logprob": torch.full((n, 2), -torch.inf, dtype=torch.float64),
                "teacher_entropy": torch.full((n,), torch.nan, dtype=torch.float64),
            }
        read, order = shown(forest, rows, peer[rows])
        names = (f"likeliest@{self.top_k}", f"likeliest_logprob@{self.top_k}", "entropy")
        found = self.model.outputs(read, names)
        ids, logprob, entropy = (found[name] for name in names)
        entries = forest.entries_of(order)

        def placed(x: Tensor, blank: float) -> Tensor:
            return x.new_full((n, *x.shape[1:]), blank).index_copy(0, entries, x)

        return {
            "teacher_ids": placed(ids.to(torch.int64), -1),
            "teacher_logprob": placed(logprob, -torch.inf),
            "teacher_entropy": placed(entropy, torch.nan),
        }

    def learn(self, forest: Forest, signals: Signals, tools: SignalTools) -> dict[str, float]:
        self.model.follow(tools.learner, self.rate)
        return {}

    def tensors(self) -> dict[str, Tensor]:
        return {name: x.cpu() for name, x in self.model.snapshot().items()} if "model" in self.memory else {}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        self.model.restore(tensors)
