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

    logprob  of the answers' tokens, teacher-forced;   answer  which of the n each is of
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
    silent  ids of tokens that end an action and say nothing; None: after the last unit is before it

    After a unit is before the next one of its trajectory: what the environment answered is part of it. After the last
    one is its last token, or the one before, if that is silent.
    """
    n = int(unit.max()) + 1 if len(unit) else 0
    counted, place = unit >= 0, torch.arange(len(unit))
    first = torch.full((n,), len(unit)).scatter_reduce_(0, unit[counted], place[counted], "amin")
    last = torch.full((n,), -1).scatter_reduce_(0, unit[counted], place[counted], "amax")
    up = forest.pack().predecessor
    before = up[forest.path_token[first]]
    closing = forest.path_token[last]
    after = before.clone()
    if silent is not None:
        after = torch.where(torch.isin(forest.token[closing], silent), up[closing], closing)
    order = torch.argsort(first)
    goes_on = forest.path_trajectory[first[order]].diff() == 0
    after[order[:-1][goes_on]] = before[order[1:][goes_on]]
    return first, before, after


def probes(forest: Forest, at: Tensor, told: Sequence[Sequence[int]], policy: Tensor) -> Forest:
    """Forest of probe trajectories: `told[i]` appended after the stored token `at[i]` (-1: at the root).

    policy  [n] policy of the tokens, an index into `forest.policy_names`

    What stands before is the given forest's, each token once, its nodes cut where something is said in the middle. The
    entries of P are the told tokens, in order. At temperature 1. For reading a model only.
    """
    begins = torch.cat([forest.first_token[:-1], at[at >= 0] + 1])
    owner = torch.cat([torch.arange(forest.n_nodes), forest.token_node[at[at >= 0]]])
    ends = forest.first_token[1:][owner]
    keep = torch.arange(len(begins)) < forest.n_nodes
    keep |= begins < ends  # a cut at a node's end cuts nothing
    key = torch.unique((owner * (forest.n_tokens + 1) + begins)[keep])
    owner, begins = key // (forest.n_tokens + 1), key % (forest.n_tokens + 1)
    inside = torch.zeros(len(key), dtype=torch.bool)  # a piece that goes on in its node
    inside[1:] = owner[1:] == owner[:-1]
    last = torch.bincount(owner, minlength=forest.n_nodes).cumsum(0) - 1  # each node's last piece
    up = forest.parent[owner]
    above = torch.where(up >= 0, last[up.clamp_min(0)], -1)
    n, none = len(key), torch.full((len(key),), -1)
    columns = {
        name: getattr(forest, name)[owner] if axis == "N" else getattr(forest, name)[:0]
        for name, (axis, _) in COLUMNS.items()
        if axis in "NSPR"
    }
    cut = {"parent": torch.where(inside, torch.arange(n) - 1, above), "previous": none, "caller": none}
    cut |= {"sampled_under": none, "first_token": torch.cat([begins, forest.first_token[-1:]])}
    context = forest.replace(**columns | cut)
    said = Forest.from_completions([()], [list(told)], ids=[str(i) for i in range(len(told))])
    whole = Forest.concat([context, said])
    piece = repeated(torch.arange(n), context.first_token.diff())  # of each token
    parent, author = whole.parent.clone(), whole.policy.clone()
    parent[n:] = torch.where(at >= 0, piece[at.clamp_min(0)], -1) if len(piece) else -1
    author[n:] = policy
    return whole.replace(parent=parent, policy=author)


@part("answer_belief", stage="signal")
@dataclass(frozen=True)
class AnswerBelief(SignalPart):
    """The signals "belief_before" and "belief_after" [P]: `answer_belief` of the right answer before and after the
    action token's turn or segment; and "answer_confidence" [P]: exp(-mean entropy) over the answer's tokens
    after it. nan where no answer is known, or the token is in no segment.

    at        "turn" | "segment" (of the forest's column; needs a segmenter)
    cue       text that is put after what was written, and the answer after it: as the policy answers
    reduce    see `answer_belief`
    answered  the last turn or segment of a trajectory gives the answer: nothing is asked after it, and what is after it
              is what was before. A policy that never goes on once it has answered may not know what the cue asks for

    The answer is not sampled but given, by the policy at the start of the step, at temperature 1. Where a turn or
    segment ends is told by `boundaries`, so that what is after one is before the next: the gains of a trajectory add up
    to the last belief less the first. All probes are one forest on the rollouts' own, each context token once: costs a
    forward pass over the rollouts and over cue and answer at every boundary, and generates nothing. Equal probes of
    trajectories that share their beginning are one.

    The answer's token ids are those of `cue` and answer encoded together, less what both encodings begin with alike.

    Figures: belief_start and belief_end, mean belief before the first and after the last turn or segment of those
    trajectories that have one, belief_moved, by how much a turn or segment moved it on average over tokens, either way,
    and belief_unknown, the share of trajectories that have none.
    """

    at: Literal["turn", "segment"] = "turn"
    cue: Annotated[str, MinLen(1)] = "\nThe answer is "
    reduce: Reduction = "exp_mean_log"
    answered: bool = False

    provides = ("belief_before", "belief_after", "answer_confidence")

    def __post_init__(self) -> None:
        object.__setattr__(self, "requires", ("segments",) if self.at == "segment" else ())

    def compute(self, forest: Forest, signals: Signals, tools: SignalTools) -> dict[str, Tensor]:
        forest.need_ids("the belief in an answer")
        unit = forest.path_step if self.at == "turn" else forest.ids("step", "segment", axis="P")
        told, which = self._told(forest, tools)
        asked = (which[forest.path_trajectory] >= 0) & (unit >= 0)
        unit = torch.where(asked, unit, -1)
        unit[asked] = torch.unique(unit[asked], return_inverse=True)[1]  # dense again
        found = torch.full((3, forest.n_entries), torch.nan, dtype=torch.float64)
        if bool(asked.any()):
            found[:, asked] = self._believed(forest, unit, told, which, tools)[:, unit[asked]]
        return dict(zip(self.provides, found, strict=True))

    def _told(self, forest: Forest, tools: SignalTools) -> tuple[list[tuple[list[int], int]], Tensor]:
        """Distinct (ids of cue and answer, where the answer begins), and [R] which is each trajectory's, -1 none."""
        cue, told, place = list(tools.encode(self.cue)), list[tuple[list[int], int]](), dict[str, int]()
        which = []
        for answer in tools.answers(forest):
            if answer is not None and answer not in place:
                ids = list(tools.encode(self.cue + answer))
                alike = next((i for i, (a, b) in enumerate(zip(cue, ids, strict=False)) if a != b), len(cue))
                place[answer] = len(told) if len(ids) > alike else -1
                told += [(ids, alike)] if len(ids) > alike else []
            which.append(-1 if answer is None else place[answer])
        return told, torch.tensor(which, dtype=torch.int64)

    def _believed(
        self, forest: Forest, unit: Tensor, told: list[tuple[list[int], int]], which: Tensor, tools: SignalTools
    ) -> Tensor:
        """[3, U]: belief before and after, confidence after."""
        spoken = torch.unique(forest.token[forest.path_token]).tolist()
        silent = torch.tensor([i for i in spoken if i >= 0 and not tools.decode([i])], dtype=torch.int64)
        first, before, after = boundaries(forest, unit, None if self.answered else silent)
        n, author = len(first), forest.policy[forest.token_node[forest.path_token[first]]]
        answer = which[forest.path_trajectory[first]]
        key = torch.stack([torch.cat([before, after]), author.repeat(2), answer.repeat(2)], 1)
        distinct, place = torch.unique(key, dim=0, return_inverse=True)
        rows = [told[i] for i in distinct[:, 2].tolist()]
        asked = probes(forest, distinct[:, 0], [ids for ids, _ in rows], distinct[:, 1])
        out = tools.learner.outputs(asked, ("logprob", "entropy"))
        begin = begins_of(asked.path_trajectory, len(rows))[:-1] + torch.tensor([skip for _, skip in rows])
        own = torch.arange(asked.n_entries) >= begin[asked.path_trajectory]
        of = asked.path_trajectory[own]
        belief = answer_belief(out["logprob"][own], of, len(rows), self.reduce)
        confidence = answer_belief(-out["entropy"][own], of, len(rows), "exp_mean_log")
        return torch.stack([belief[place[:n]], belief[place[n:]], confidence[place[n:]]])

    def learn(self, forest: Forest, signals: Signals, tools: SignalTools) -> dict[str, float]:
        begins = begins_of(forest.path_trajectory, forest.n_trajectories)
        acts = begins.diff() > 0
        start = signals["belief_before"][begins[:-1][acts]]
        end = signals["belief_after"][begins[1:][acts] - 1]
        known = start.isfinite() & end.isfinite()
        figures = {"belief_unknown": 1.0 - float(known.sum()) / max(forest.n_trajectories, 1)}
        if bool(known.any()):
            figures |= {"belief_start": float(start[known].mean()), "belief_end": float(end[known].mean())}
            figures["belief_moved"] = float((signals["belief_after"] - signals["belief_before"]).abs().nanmean())
        return figures
