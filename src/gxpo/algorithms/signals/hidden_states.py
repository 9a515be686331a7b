"""Signals from hidden states: mean embedding, L1 norm before each token, divergence across a group (TW-GRPO)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

import torch
from annotated_types import Ge
from torch import Tensor

from gxpo.base.errors import ModelError
from gxpo.forest import grouped
from gxpo.forest.grouped import begins_of
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import Learner

CHUNK = 1 << 16  # entries whose states are taken out at a time
ROUNDING = 1e-6  # a divergence below this is rounding


@part("mean_hidden", stage="signal", gives={"embedding": "R"})
def mean_hidden(forest: Forest, hidden: Tensor, *, layer: int = -1) -> Tensor:
    """The signal "embedding" [R, H] float64: mean of the policy's hidden states over each trajectory's action tokens.

    hidden  [T, H];   layer  which hidden states; -1 the last

    0 where a trajectory has no action tokens. It needs no second model, and is coarser than a sentence encoder: mean
    states of a language model all point much the same way, so their cosines are near 1. An encoder of one's own is a
    signal part that provides "embedding".
    """
    total = torch.zeros(forest.n_trajectories, hidden.shape[1], dtype=torch.float64)
    # In chunks: states of all entries at once would be a second copy of the step's hidden states.
    for entries in torch.arange(forest.n_entries).split(CHUNK):
        total.index_add_(0, forest.path_trajectory[entries], hidden[forest.path_token[entries]].to(torch.float64))
    length = torch.bincount(forest.path_trajectory, minlength=forest.n_trajectories)
    return total / length.clamp_min(1)[:, None]


@part("state_norm", stage="signal", gives={"state_norm": "P"})
def state_norm(forest: Forest, hidden: Tensor) -> Tensor:
    """The signal "state_norm" [P]: |h|_1 of the policy's last hidden state, as the head reads it, at the token before.

    Of the policy at the start of the step; costs one forward pass.
    """
    token_before = forest.pack().predecessor[forest.path_token]
    _need_prompts(token_before[forest.path_trainable])
    return norm_before(hidden, token_before)


@torch.no_grad()
def norm_before(hidden: Tensor, before: Tensor) -> Tensor:
    """L1 norm of the row of `hidden` [T, H] before each token, [n] float64; 0 where there is none.

    before  [n] int64 row of the token before, -1 = none
    """
    norm = torch.linalg.vector_norm(hidden, ord=1, dim=1).to(torch.float64)
    return torch.where(before >= 0, norm[before.clamp_min(0)], 0.0)


def _need_prompts(before: Tensor) -> None:
    if bool((before < 0).any()):
        raise ModelError("an answer begins with its first token, which nothing predicts: give it a prompt")


@part("disagreement", stage="signal", gives={"disagreement": "P"})
def disagreement(forest: Forest, learner: Learner, *, logits_at_once: Annotated[int, Ge(1)] = 2**23) -> Tensor:
    """The signal "disagreement" [P]: `divergence` at each token's position in its answer, over its group's answers.

    The t-th trainable tokens of a group's scored and compared answers are one position; the distributions are the
    policy's at the start of the step, over the whole vocabulary, at each trajectory's temperature. An answer that is
    not compared is given what its group's position has, 0 past their ends; tokens that are not trained have 0.

    logits_at_once  at about so many logits a time: nothing of [tokens x vocabulary] is held

    Costs one forward pass of the step and the head on every trained token. Source: TW-GRPO, arXiv 2505.24718.
    """
    forest.need_ids("disagreement")
    out = torch.zeros(forest.n_entries, dtype=torch.float64)
    entries = forest.path_trainable.nonzero().squeeze(1)
    owner = forest.path_trajectory[entries]
    is_counted = (forest.scored & forest.compared)[owner]
    if not bool(is_counted.any()):
        return out
    position, group = positions(forest)[entries], forest.ids("group", axis="R")
    # A cell is a position of a group's answers: the t-th trainable tokens of all of them.
    cells, cell = torch.unique(group[owner] * (position.max() + 1) + position, return_inverse=True)
    # Members that have ended before a position still count there, as the uniform distribution.
    n_members_R = grouped.count(group, forest.scored & forest.compared & (forest.lengths() > 0))
    members_of_cell = torch.zeros(len(cells), dtype=torch.float64).index_copy_(0, cell, n_members_R[owner])
    # Rows by cell, so that a chunk of whole cells is a slice.
    rows = entries[is_counted][torch.argsort(cell[is_counted], stable=True)]
    cell_of_row = cell[is_counted].sort(stable=True).values
    divergence_by_cell = _by_cell(forest, rows, cell_of_row, members_of_cell, learner, logits_at_once)
    # Answers that are not compared have the value of their group's position.
    out[entries] = torch.where(divergence_by_cell < ROUNDING, 0.0, divergence_by_cell)[cell]
    return out


def _by_cell(forest: Forest, rows: Tensor, cell: Tensor, size: Tensor, learner: Learner, logits_at_once: int) -> Tensor:
    """`divergence` of every cell that has rows (path tokens, by cell), 0 of the others; chunks of whole cells."""
    token_before = forest.pack().predecessor[forest.path_token[rows]]
    _need_prompts(token_before)
    # Distributions as they were sampled from: each trajectory's own temperature.
    temperatures = [s.get("temperature") for s in forest.sampling]
    temperature = torch.tensor([1.0 if t is None else float(t) for t in temperatures])[forest.path_trajectory[rows]]
    hidden = learner.hidden(forest)
    # The head's [tokens x vocabulary] is the largest tensor here: chunks bound it.
    at_once = max(1, logits_at_once // learner.logits(hidden[:1]).shape[1])
    cells_with_rows, begins = cell.unique(), begins_of(cell, len(size))
    chunk = begins[cells_with_rows] // at_once
    out = torch.zeros(len(size), dtype=torch.float64)
    for cells in cells_with_rows.split(torch.bincount(chunk)[chunk.unique()].tolist()):
        chunk_rows = slice(int(begins[cells[0]]), int(begins[cells[-1] + 1]))
        logits = learner.logits(hidden[token_before[chunk_rows]])
        logprob = (logits / temperature[chunk_rows, None].to(logits)).log_softmax(1)
        cell_in_chunk = torch.searchsorted(cells, cell[chunk_rows]).to(logits.device)
        out[cells] = divergence(logprob, cell_in_chunk, size[cells].to(logits.device)).cpu()
    return out


@torch.no_grad()
def divergence(logprob: Tensor, cell: Tensor, members: Tensor, bound: float = 11.0) -> Tensor:
    """Divergence of cells: mean over the group's members i of sum_v (e^d - d - 1), d = mean l_v - l_iv, |d| <= bound.

    logprob  [n, V] log-softmax l of the members that have a token at their cell's position
    cell     [n] int64, 0 <= cell < k;   members  [k] size of each cell's group
    Members whose answer has ended are the uniform distribution, in the mean and as a term. Returns [k] float64. The sum
    is over the vocabulary without weights: rare words dominate, and it is not a Kullback-Leibler divergence.
    """
    k, size = len(members), members.to(logprob)[:, None]
    uniform = -math.log(logprob.shape[1])
    # Ended members enter the mean as uniform, and as a term of their own.
    missing = size - torch.bincount(cell, minlength=k).to(logprob)[:, None]
    mean = (logprob.new_zeros(k, logprob.shape[1]).index_add_(0, cell, logprob) + missing * uniform) / size

    def penalty(d: Tensor) -> Tensor:
        d = d.clamp(-bound, bound)
        return (d.expm1() - d).sum(1).to(torch.float64)

    total = penalty(mean - uniform) * missing.squeeze(1).to(torch.float64)
    total = total.index_add_(0, cell, penalty(mean[cell] - logprob))
    return total / size.squeeze(1).to(torch.float64)


def positions(forest: Forest) -> Tensor:
    """Position of each action token among its trajectory's trainable tokens, [P] int64."""
    trained_before = torch.cat([torch.zeros(1, dtype=torch.int64), forest.path_trainable.to(torch.int64).cumsum(0)])
    begins = begins_of(forest.path_trajectory, forest.n_trajectories)
    return trained_before[:-1] - trained_before[begins[:-1]][forest.path_trajectory]
