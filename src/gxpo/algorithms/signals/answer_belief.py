"""Probability of the right answer under the policy before and after each turn or segment (IGPO, GRPO-VPS, SPAE)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import torch
from annotated_types import MinLen
from torch import Tensor

from gxpo.algorithms.signals.base import SignalPart, SignalTools
from gxpo.base.errors import one_of
from gxpo.forest.forest import COLUMNS, Forest
from gxpo.forest.grouped import begins_of, repeated
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.parts.protocols import Signals

Reduction = Literal["mean_prob", "exp_mean_log", "joint", "joint_over_length"]
REDUCTIONS = ("mean_prob", "exp_mean_log", "joint", "joint_over_length")


@torch.no_grad()
def answer_belief(logprob: Tensor, answer: Tensor, n: int, reduce: str = "exp_mean_log") -> Tensor:
    """Score of each answer from the log-probs of its tokens, [n] float64; nan for an answer without tokens.

    logprob  of the answers' tokens, teacher-forced;   answer  index of each token's answer, below n
    reduce   "mean_prob"          mean of the probabilities (SPAE)
             "exp_mean_log"       their geometric mean (IGPO)
             "joint"              their product (GRPO-VPS); near 0 for every long answer
             "joint_over_length"  product over number, as SPAE's released probe computes it; at most 1/number

    >>> x = torch.tensor([0.9, 0.8, 0.95], dtype=torch.float64).log()
    >>> [round(float(answer_belief(x, torch.zeros(3).long(), 1, how)), 6) for how in REDUCTIONS]
    [0.883333, 0.881087, 0.684, 0.228]
    """
    one_of("reduce", reduce, REDUCTIONS)
    length = torch.bincount(answer, minlength=n)
    x = logprob.to(torch.float64)
    total = torch.zeros(n, dtype=torch.float64).index_add_(0, answer, x.exp() if reduce == "mean_prob" else x)
    value = {
        "mean_prob": lambda: total / length,
        "exp_mean_log": lambda: (total / length).exp(),
        "joint": lambda: total.exp(),
        "joint_over_length": lambda: total.exp() / length,
    }[reduce]()
    return torch.where(length > 0, value, torch.nan)


def boundaries(forest: Forest, unit: Tensor, silent: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """First entry of each unit, and the last stored token before and after it (-1: none); [U].

    unit    [P] int64 dense ids of turns or segments, -1 none
    silent  ids of tokens that end an action without text; None: the token before the last unit is also that after it

    The token after a unit is that before the next one of its trajectory, so that the environment's answer is part of
    the unit. After the last one it is the unit's last token, or the one before, if that is silent.
    """
    n = int(unit.max()) + 1 if len(unit) else 0
    is_in_unit, entry = unit >= 0, torch.arange(len(unit))
    first_entry = torch.full((n,), len(unit)).scatter_reduce_(0, unit[is_in_unit], entry[is_in_unit], "amin")
    last_entry = torch.full((n,), -1).scatter_reduce_(0, unit[is_in_unit], entry[is_in_unit], "amax")
    token_above = forest.pack().predecessor
    before = token_above[forest.path_token[first_entry]]
    last_token = forest.path_token[last_entry]
    # The environment's answer to a turn belongs to it: its end is where the next one begins.
    after = before.clone()
    if silent is not None:
        after = torch.where(torch.isin(forest.token[last_token], silent), token_above[last_token], last_token)
    # Units in time: ids are dense, but not in the order of the path.
    order = torch.argsort(first_entry)
    has_next = forest.path_trajectory[first_entry[order]].diff() == 0
    after[order[:-1][has_next]] = before[order[1:][has_next]]
    return first_entry, before, after


def probes(forest: Forest, after_token: Tensor, continuations: Sequence[Sequence[int]], policy: Tensor) -> Forest:
    """Forest of probe trajectories: `continuations[i]` appended after the token `after_token[i]` (-1: at the root).

    policy  [n] policy of the tokens, an index into `forest.policy_names`

    Contexts are the given forest's, each token once; a node is cut where a probe leaves its middle. The entries of P
    are the tokens of the continuations, in order. Temperature 1. For reading a model only.
    """
    begins = torch.cat([forest.first_token[:-1], after_token[after_token >= 0] + 1])
    owner = torch.cat([torch.arange(forest.n_nodes), forest.token_node[after_token[after_token >= 0]]])
    ends = forest.first_token[1:][owner]
    # Every node stays, and one more piece begins behind each token that a probe follows.
    keep = torch.arange(len(begins)) < forest.n_nodes
    keep |= begins < ends  # a cut at a node's end cuts nothing
    key = torch.unique((owner * (forest.n_tokens + 1) + begins)[keep])
    owner, begins = key // (forest.n_tokens + 1), key % (forest.n_tokens + 1)
    # A piece hangs on the one before it in its node, the first on the last piece of the parent.
    continues_node = torch.zeros(len(key), dtype=torch.bool)
    continues_node[1:] = owner[1:] == owner[:-1]
    last_piece = torch.bincount(owner, minlength=forest.n_nodes).cumsum(0) - 1  # each node's last piece
    parent_node = forest.parent[owner]
    piece_above = torch.where(parent_node >= 0, last_piece[parent_node.clamp_min(0)], -1)
    n, none = len(key), torch.full((len(key),), -1)
    columns = {
        name: getattr(forest, name)[owner] if axis == "N" else getattr(forest, name)[:0]
        for name, (axis, _) in COLUMNS.items()
        if axis in "NSPR"
    }
    topology = {
        "parent": torch.where(continues_node, torch.arange(n) - 1, piece_above),
        "previous": none,
        "caller": none,
        "sampled_under": none,
        "first_token": torch.cat([begins, forest.first_token[-1:]]),
    }
    context = forest.replace(**columns | topology)
    # The answers are trajectories of their own, hung below the pieces that end at their tokens.
    continuation_forest = Forest.from_completions(
        [()], [list(continuations)], ids=[str(i) for i in range(len(continuations))]
    )
    probe_forest = Forest.concat([context, continuation_forest])
    piece_of_token = repeated(torch.arange(n), context.first_token.diff())
    parent, author = probe_forest.parent.clone(), probe_forest.policy.clone()
    above = piece_of_token[after_token.clamp_min(0)] if len(piece_of_token) else torch.full_like(after_token, -1)
    parent[n:] = torch.where(after_token >= 0, above, -1)
    author[n:] = policy
    return probe_forest.replace(parent=parent, policy=author)


@part("answer_belief", stage="signal")
@dataclass(frozen=True)
class AnswerBelief(SignalPart):
    """The signals "belief_before" and "belief_after" [P]: `answer_belief` of the right answer before and after the
    action token's turn or segment; and "answer_confidence" [P]: exp(-mean entropy) over the answer's tokens
    after it. nan where no answer is known, or the token is in no segment.

    unit      "turn" | "segment" (of the forest's column; needs a segmenter)
    cue       text between the rollout so far and the answer, in the form in which the policy answers
    reduce    see `answer_belief`
    ends_with_answer  True: the last turn or segment of a trajectory gives the answer, and the belief after it is that
                      before it. A policy that never goes on once it has answered may not know how to continue after
                      the cue

    The answer is not sampled: its tokens are read by the policy at the start of the step, at temperature 1. A turn or
    segment ends at its `boundaries`, so that the belief after one is that before the next: the gains of a trajectory
    add up to the last belief less the first. All probes are one forest on the rollouts' own, each context token once:
    costs a forward pass over the rollouts and over cue and answer at every boundary, and generates nothing. Equal
    probes of trajectories that share their beginning are one.

    The answer's token ids are those of `cue` and answer encoded together, less what both encodings begin with alike.

    Figures: belief_start and belief_end, mean belief before the first and after the last turn or segment of those
    trajectories that have one, belief_moved, by how much a turn or segment moved it on average over tokens, either way,
    and belief_unknown, the share of trajectories that have none.
    """

    unit: Literal["turn", "segment"] = "turn"
    cue: Annotated[str, MinLen(1)] = "\nThe answer is "
    reduce: Reduction = "exp_mean_log"
    ends_with_answer: bool = False

    provides = ("belief_before", "belief_after", "answer_confidence")

    def __post_init__(self) -> None:
        object.__setattr__(self, "requires", ("segments",) if self.unit == "segment" else ())

    def compute(self, forest: Forest, signals: Signals, tools: SignalTools) -> dict[str, Tensor]:
        forest.need_ids("the belief in an answer")
        unit = forest.path_step if self.unit == "turn" else forest.ids("step", "segment", axis="P")
        continuations, continuation_R = self._continuations(forest, tools)
        is_probed_P = (continuation_R[forest.path_trajectory] >= 0) & (unit >= 0)
        unit = torch.where(is_probed_P, unit, -1)
        # Ids of units without an answer leave gaps, and a unit is a row below.
        unit[is_probed_P] = torch.unique(unit[is_probed_P], return_inverse=True)[1]  # dense again
        beliefs = torch.full((3, forest.n_entries), torch.nan, dtype=torch.float64)
        if bool(is_probed_P.any()):
            beliefs[:, is_probed_P] = self._beliefs(forest, unit, continuations, continuation_R, tools)[
                :, unit[is_probed_P]
            ]
        return dict(zip(self.provides, beliefs, strict=True))

    def _continuations(self, forest: Forest, tools: SignalTools) -> tuple[list[tuple[list[int], int]], Tensor]:
        """Distinct (ids of cue and answer, begin of the answer), and each trajectory's index among them, [R]."""
        cue, index_R = list(tools.encode(self.cue)), []
        continuations: list[tuple[list[int], int]] = []
        index_by_answer: dict[str, int] = {}
        for answer in tools.answers(forest):
            if answer is not None and answer not in index_by_answer:
                ids = list(tools.encode(self.cue + answer))
                # The answer's ids depend on the cue before it: they are what both encodings do not begin with alike.
                answer_begin = next((i for i, (a, b) in enumerate(zip(cue, ids, strict=False)) if a != b), len(cue))
                index_by_answer[answer] = len(continuations) if len(ids) > answer_begin else -1
                continuations += [(ids, answer_begin)] if len(ids) > answer_begin else []
            index_R.append(-1 if answer is None else index_by_answer[answer])
        return continuations, torch.tensor(index_R, dtype=torch.int64)

    def _beliefs(
        self,
        forest: Forest,
        unit: Tensor,
        continuations: list[tuple[list[int], int]],
        continuation_R: Tensor,
        tools: SignalTools,
    ) -> Tensor:
        """Belief before and after each unit, and confidence after it, [3, U]."""
        action_vocabulary = torch.unique(forest.token[forest.path_token]).tolist()
        # Ids without text end an action (eos, end of turn): after them the policy would open another turn.
        silent = torch.tensor([i for i in action_vocabulary if i >= 0 and not tools.decode([i])], dtype=torch.int64)
        first, before, after = boundaries(forest, unit, None if self.ends_with_answer else silent)
        n_units, author = len(first), forest.policy[forest.token_node[forest.path_token[first]]]
        answer = continuation_R[forest.path_trajectory[first]]
        probe_key = torch.stack([torch.cat([before, after]), author.repeat(2), answer.repeat(2)], 1)
        # Trajectories that share their beginning ask the same thing: one probe for all of them.
        distinct, probe_of_boundary = torch.unique(probe_key, dim=0, return_inverse=True)
        rows = [continuations[i] for i in distinct[:, 2].tolist()]
        probe_forest = probes(forest, distinct[:, 0], [ids for ids, _ in rows], distinct[:, 1])
        out = tools.learner.outputs(probe_forest, ("logprob", "entropy"))
        begin = begins_of(probe_forest.path_trajectory, len(rows))[:-1] + torch.tensor([skip for _, skip in rows])
        # The cue is conditioned on, not scored.
        is_answer = torch.arange(probe_forest.n_entries) >= begin[probe_forest.path_trajectory]
        probe_of_token = probe_forest.path_trajectory[is_answer]
        belief = answer_belief(out["logprob"][is_answer], probe_of_token, len(rows), self.reduce)
        # exp(-mean entropy) is the geometric mean of exp(-entropy): the same reduction.
        confidence = answer_belief(-out["entropy"][is_answer], probe_of_token, len(rows), "exp_mean_log")
        return torch.stack(
            [
                belief[probe_of_boundary[:n_units]],
                belief[probe_of_boundary[n_units:]],
                confidence[probe_of_boundary[n_units:]],
            ]
        )

    def learn(self, forest: Forest, signals: Signals, tools: SignalTools) -> dict[str, float]:
        begins = begins_of(forest.path_trajectory, forest.n_trajectories)
        has_tokens = begins.diff() > 0
        # The belief before a trajectory's first token, and after its last.
        start = signals["belief_before"][begins[:-1][has_tokens]]
        end = signals["belief_after"][begins[1:][has_tokens] - 1]
        has_belief = start.isfinite() & end.isfinite()
        figures = {"belief_unknown": 1.0 - float(has_belief.sum()) / max(forest.n_trajectories, 1)}
        if bool(has_belief.any()):
            figures |= {"belief_start": float(start[has_belief].mean()), "belief_end": float(end[has_belief].mean())}
            figures["belief_moved"] = float((signals["belief_after"] - signals["belief_before"]).abs().nanmean())
        return figures
