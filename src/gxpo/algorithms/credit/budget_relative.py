"""Budget-relative advantages (AnytimeReasoner, BRPO): the gain in answer score per thinking budget."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from annotated_types import Gt
from torch import Tensor

from gxpo.forest import grouped
from gxpo.forest.forest import Forest
from gxpo.forest.grouped import dense
from gxpo.parts.registry import part


@torch.no_grad()
def budget_relative(
    score: Tensor,
    group: Tensor,
    prior: Tensor,
    growth: float = 2.0,
    where: Tensor | None = None,
    singleton: str = "zero",
) -> Tensor:
    """A = R - baseline for the thinking tokens between each two budgets: [n, S] float64.

    score   [n, S] mean score of the answers to a thinking that is cut at each of S budgets, in order; nan: not known
    group   [n] int64 dense ids: thinkings about one task; -1 = none
    prior   [S] how likely each budget is
    where   [n] bool, compared (default: all): whose returns enter the mean of their group
    singleton  what a thinking without another to compare with is given: "zero", or "raw": V2 = 0

    R_s  = sum_{j >= s} P_j score_j                                     what can still be earned
    V1_s = (sum_{j < s} g^j score_j / sum_{j < s} g^j) sum_{j >= s} P_j     g = growth; 0 at s = 0
    V2_s = mean of R_s over the group
    baseline_s = (s V1_s + (S - s) V2_s) / S                            s from 0

    A thinking of which one score is not known has 0, and is in no mean. Exactly 0 also where all scores of a group are
    equal. With one budget it is the outcome less its group's mean (Dr. GRPO).

    Source: AnytimeReasoner (BRPO), arXiv 2505.13438.
    """
    n, budgets = score.shape
    known = score.isfinite().all(1)
    x = torch.where(known[:, None], score, 0.0).to(torch.float64)
    later = prior.to(torch.float64)
    after = later.flip(0).cumsum(0).flip(0)  # sum of P_j, j >= s
    returns = (x * later).flip(1).cumsum(1).flip(1)
    steps = torch.arange(budgets, dtype=torch.float64)
    growing = growth**steps
    before = (x * growing).cumsum(1)[:, :-1] / growing.cumsum(0)[:-1]
    own = torch.cat([x.new_zeros(n, 1), before], 1) * after
    enters = known if where is None else known & where
    # every budget is a column of its own: ids of (group, budget)
    columns = torch.where(group[:, None] < 0, -1, group[:, None] * budgets + torch.arange(budgets)).reshape(-1)
    every = enters[:, None].expand(n, budgets).reshape(-1)
    mean = grouped.mean(returns.reshape(-1), columns, every).view(n, budgets)
    others = grouped.count(group, enters) - enters.to(torch.float64)
    mean = torch.where((others > 0)[:, None], mean, 0.0)
    advantage = returns - (steps * own + (budgets - steps) * mean) / budgets
    rows = group[:, None].expand(n, budgets).reshape(-1)
    equal = grouped.degenerate(x.reshape(-1), rows, every).view(n, budgets) & (enters & (others > 0))[:, None]
    counts = known & (group >= 0) & ((others > 0) | (torch.tensor(singleton == "raw") & enters))
    return torch.where(counts[:, None] & ~equal, advantage, 0.0)


def budget_prior(budgets: int, prior: str) -> Tensor:
    """Probabilities P of the budgets, [S]: "uniform", "linear" in the budget, or "last" alone."""
    if prior == "last":
        return torch.eye(budgets, dtype=torch.float64)[-1]
    raw = torch.ones(budgets) if prior == "uniform" else torch.arange(1, budgets + 1)
    return raw.to(torch.float64) / raw.sum()


@part("budget_relative", stage="credit", gives="P")
def by_budgets(
    group: Tensor,
    forest: Forest,
    *,
    prior: Literal["uniform", "linear", "last"] = "uniform",
    growth: Annotated[float, Gt(0)] = 2.0,
    singleton: Literal["zero", "raw"] = "zero",
) -> Tensor:
    """Budget-relative advantage: `budget_relative` for thinking tokens; answers against others after the same cut.

    prior   P: "uniform", "linear" (in proportion to the budget) or "last" (the whole thinking alone)
    growth  g: how much more the score at a later budget says of what is to come
    singleton  of a thinking alone in its group: "zero" or "raw"

    Of rollouts that `rollout=thinking_budgets` has grown: trajectories with one info["thinking"] share a thinking, in
    turn 0, whose segments end at the budgets; info["budget"] is the first budget that a trajectory's cut stands for,
    and info["covers"] how many (a thinking that ends early stands for all later ones). An answer alone at its cut is
    compared with its group's answers at that budget. Any other trajectory is a thinking of one budget, no answer.

    A cut's score is the mean of its compared answers. A thinking that has no scored answer at some cut has 0.
    """

    compared, rows = forest.compared, forest.n_trajectories
    cut = torch.tensor(["thinking" in info for info in forest.info], dtype=torch.bool)
    budget, covers = _noted(forest, "budget", 0), _noted(forest, "covers", 1)
    budgets = int((budget + covers).max())
    # which thinking a trajectory has: one that is not cut is a thinking by itself
    shared = torch.where(cut, forest.ids("info.thinking", axis="R"), rows)
    own = dense(shared * (rows + 1) + torch.where(cut, 0, torch.arange(rows)))
    n = int(own.max()) + 1
    at_cut, at_budget = own * budgets + budget, group * budgets + budget
    several = grouped.count(at_cut, compared)
    mean = torch.where(several > 0, grouped.mean(forest.outcome, at_cut, compared), forest.outcome)
    column = torch.arange(budgets)
    stands = (budget[:, None] <= column) & (column < (budget + covers)[:, None]) | ~cut[:, None]
    row, place = stands.nonzero(as_tuple=True)
    score = torch.full((n, budgets), torch.nan, dtype=torch.float64)
    score[own[row], place] = mean[row]
    task, enters = torch.full((n,), -1), torch.zeros(n, dtype=torch.bool)
    task[own] = group
    enters[own[compared]] = True
    thinking = budget_relative(score, task, budget_prior(budgets, prior), growth, enters, singleton)
    answer = torch.where(
        several > 1,
        grouped.normalize(forest.outcome, at_cut, compared, scale="none"),
        grouped.normalize(forest.outcome, at_budget, compared, scale="none"),
    )
    owner = forest.path_trajectory
    segment = torch.where(cut[owner], forest.segment[forest.path_token].clamp(0, budgets - 1), 0)
    answers = cut[owner] & (forest.step_turn[forest.path_step] > 0)
    return torch.where(answers, answer[owner], thinking[own[owner], segment])


def _noted(forest: Forest, key: str, default: int) -> Tensor:
    """[R] int64: a number in the info of every trajectory that has a thinking."""
    return torch.tensor([info[key] if "thinking" in info else default for info in forest.info])
