"""Divergence of next-token distributions across a group, position by position (TW-GRPO)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import torch
from annotated_types import Ge
from torch import Tensor

from gxpo import levels
from gxpo.errors import ModelError
from gxpo.registry import part
from gxpo.signals.base import SignalPart, SignalTools
from gxpo.trees import begins_of

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals

ROUNDING = 1e-6  # a divergence below this is rounding


@torch.no_grad()
def divergence(logprob: Tensor, cell: Tensor, members: Tensor, bound: float = 11.0) -> Tensor:
    """D of each cell: mean over its group's members i of sum_v (e^d - d - 1), d = mean l_v - l_iv in [-bound, bound].

    logprob  [n, V] log-softmax l of the members that have a token at their cell's position
    cell     [n] int64, 0 <= cell < k;   members  [k] size of each cell's group
    Members whose answer has ended are the uniform distribution, in the mean and as a term. Returns [k] float64. The sum
    is over the vocabulary without weights: rare words dominate, and it is not a Kullback-Leibler divergence.
    """
    k, size = len(members), members.to(logprob)[:, None]
    uniform = -math.log(logprob.shape[1])
    missing = size - torch.bincount(cell, minlength=k).to(logprob)[:, None]
    mean = (logprob.new_zeros(k, logprob.shape[1]).index_add_(0, cell, logprob) + missing * uniform) / size

    def apart(d: Tensor) -> Tensor:
        d = d.clamp(-bound, bound)
        return (d.expm1() - d).sum(1).to(torch.float64)

    total = apart(mean - uniform) * missing.squeeze(1).to(torch.float64)
    total = total.index_add_(0, cell, apart(mean[cell] - logprob))
    return total / size.squeeze(1).to(torch.float64)


def positions(forest: Forest) -> Tensor:
    """Position of each action token among its trajectory's trainable tokens, [P] int64."""
    before = torch.cat([torch.zeros(1, dtype=torch.int64), forest.path_trainable.to(torch.int64).cumsum(0)])
    begins = begins_of(forest.path_trajectory, forest.n_trajectories)
    return before[:-1] - before[begins[:-1]][forest.path_trajectory]


@part("disagreement", stage="signal")
@dataclass(frozen=True)
class Disagreement(SignalPart):
    """The signal "disagreement" [P]: `divergence` at each token's position in its answer, over its group's answers.

    The t-th trainable tokens of a group's scored and compared answers are one position; the distributions are the
    policy's at the start of the step, over the whole vocabulary, at each trajectory's temperature. An answer that is
    not compared is given what its group's position has, 0 past their ends; tokens that are not trained have 0.

    logits_at_once  at about so many logits a time: nothing of [tokens x vocabulary] is held

    Costs one forward pass of the step and the head on every trained token. Source: TW-GRPO, arXiv 2505.24718.
    """

    logits_at_once: Annotated[int, Ge(1)] = 2**23

    provides = ("disagreement",)

    def compute(self, forest: Forest, signals: Signals, tools: SignalTools) -> dict[str, Tensor]:
        forest.need_ids("disagreement")
        out = torch.zeros(forest.n_entries, dtype=torch.float64)
        entries = forest.path_trainable.nonzero().squeeze(1)
        owner = forest.path_trajectory[entries]
        counts = (forest.scored & forest.compared)[owner]
        if not bool(counts.any()):
            return {"disagreement": out}
        place, group = positions(forest)[entries], forest.ids("group", axis="R")
        cells, cell = torch.unique(group[owner] * (place.max() + 1) + place, return_inverse=True)
        members = levels.count(group, forest.scored & forest.compared & (forest.lengths() > 0))
        size = torch.zeros(len(cells), dtype=torch.float64).index_copy_(0, cell, members[owner])
        rows = entries[counts][torch.argsort(cell[counts], stable=True)]
        of_row = cell[counts].sort(stable=True).values
        found = self._by_cell(forest, rows, of_row, size, tools)
        out[entries] = torch.where(found < ROUNDING, 0.0, found)[cell]
        return {"disagreement": out}

    def _by_cell(self, forest: Forest, rows: Tensor, cell: Tensor, size: Tensor, tools: SignalTools) -> Tensor:
        """`divergence` of every cell that has rows (path tokens, by cell), 0 of the others; chunks of whole cells."""
        before = forest.pack().predecessor[forest.path_token[rows]]
        if bool((before < 0).any()):
            raise ModelError("an answer begins with its first token, which nothing predicts: give it a prompt")
        heat = [s.get("temperature") for s in forest.sampling]
        temperature = torch.tensor([1.0 if t is None else float(t) for t in heat])[forest.path_trajectory[rows]]
        hidden = tools.learner.hidden(forest)
        at_once = max(1, self.logits_at_once // tools.learner.logits(hidden[:1]).shape[1])
        own, begins = cell.unique(), begins_of(cell, len(size))
        chunk = begins[own] // at_once
        out = torch.zeros(len(size), dtype=torch.float64)
        for cells in own.split(torch.bincount(chunk)[chunk.unique()].tolist()):
            part = slice(int(begins[cells[0]]), int(begins[cells[-1] + 1]))
            logits = tools.learner.logits(hidden[before[part]])
            spoken = (logits / temperature[part, None].to(logits)).log_softmax(1)
            local = torch.searchsorted(cells, cell[part]).to(logits.device)
            out[cells] = divergence(spoken, local, size[cells].to(logits.device)).cpu()
        return out
