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
    """Budget-relative advantage A = R - baseline of the thinking tokens between each two budgets: [n, S] float64.

    score   [n, S] mean score of the answers to a thinking cut at each of S budgets, in order; nan unknown
    group   [n] int64 dense ids: thinkings about one task; -1 = none
    prior   [S] how likely each budget is
    where   [n] bool, compared (default: all): thinkings whose returns enter the mean of their group
    singleton  advantage of a thinking without another to compare with: "zero", or "raw": V2 = 0

    R_s  = sum_{j >= s} P_j score_j                                     what can still be earned
    V1_s = (sum_{j < s} g^j score_j / sum_{j < s} g^j) sum_{j >= s} P_j     g = growth; 0 at s = 0
    V2_s = mean of R_s over the group
    baseline_s = (s V1_s + (S - s) V2_s) / S                            s from 0

    A thinking with an unknown score has 0, and is in no mean. Exactly 0 also where all scores of a group are
    equal. With one budget it is the outcome less its group's mean (Dr. GRPO).

    Source: AnytimeReasoner (BRPO), arXiv 2505.13438.
    """
    n, budgets = score.shape
    is_scored = score.isfinite().all(1)
    filled_score = torch.where(is_scored[:, None], score, 0.0).to(torch.float64)
    probability = prior.to(torch.float64)
    # R_s: the score that can still be earned from budget s on.
    probability_from = probability.flip(0).cumsum(0).flip(0)  # sum of P_j, j >= s
    returns = (filled_score * probability).flip(1).cumsum(1).flip(1)
    steps = torch.arange(budgets, dtype=torch.float64)
    growth_power = growth**steps
    # V1_s: the thinking's own earlier scores, later ones weighing more, predict what is to come; 0 at s = 0.
    mean_before = (filled_score * growth_power).cumsum(1)[:, :-1] / growth_power.cumsum(0)[:-1]
    own_estimate = torch.cat([filled_score.new_zeros(n, 1), mean_before], 1) * probability_from
    is_compared = is_scored if where is None else is_scored & where
    # every budget is a column of its own: ids of (group, budget)
    group_budget_ids = torch.where(group[:, None] < 0, -1, group[:, None] * budgets + torch.arange(budgets)).reshape(-1)
    is_compared_flat = is_compared[:, None].expand(n, budgets).reshape(-1)
    group_mean = grouped.mean(returns.reshape(-1), group_budget_ids, is_compared_flat).view(n, budgets)
    # V2_s: a thinking alone in its group has no mean of others to be measured by.
    n_others = grouped.count(group, is_compared) - is_compared.to(torch.float64)
    group_mean = torch.where((n_others > 0)[:, None], group_mean, 0.0)
    # The more budgets lie behind s, the more the thinking's own scores count in its baseline.
    advantage = returns - (steps * own_estimate + (budgets - steps) * group_mean) / budgets
    # A group whose scores are all equal is exactly 0, not rounding; a single thinking is not such a group.
    group_flat = group[:, None].expand(n, budgets).reshape(-1)
    is_equal = (
        grouped.degenerate(filled_score.reshape(-1), group_flat, is_compared_flat).view(n, budgets)
        & (is_compared & (n_others > 0))[:, None]
    )
    has_advantage = is_scored & (group >= 0) & ((n_others > 0) | (torch.tensor(singleton == "raw") & is_compared))
    return torch.where(has_advantage[:, None] & ~is_equal, advantage, 0.0)


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
    growth  g: weight of a score against that at the budget before, as a forecast of later ones
    singleton  of a thinking alone in its group: "zero" or "raw"

    For rollouts of `rollout=thinking_budgets`: trajectories with one info["thinking"] share a thinking, in
    turn 0, whose segments end at the budgets; info["budget"] is the first budget that a trajectory's cut stands for,
    and info["covers"] how many (a thinking that ends early stands for all later ones). An answer alone at its cut is
    compared with its group's answers at that budget. Any other trajectory is a thinking of one budget, no answer.

    A cut's score is the mean of its compared answers. A thinking that has no scored answer at some cut has 0.
    """
    compared, rows = forest.compared, forest.n_trajectories
    is_cut_R = torch.tensor(["thinking" in info for info in forest.info], dtype=torch.bool)
    budget, covers = _info_number(forest, "budget", 0), _info_number(forest, "covers", 1)
    budgets = int((budget + covers).max())
    # A trajectory that is not cut is a thinking by itself.
    thinking_key = torch.where(is_cut_R, forest.ids("info.thinking", axis="R"), rows)
    thinking_R = dense(thinking_key * (rows + 1) + torch.where(is_cut_R, 0, torch.arange(rows)))
    n_thinkings = int(thinking_R.max()) + 1
    at_cut, at_budget = thinking_R * budgets + budget, group * budgets + budget
    # Answers of one cut are samples of one score: their mean is the thinking's score at that budget.
    n_at_cut_R = grouped.count(at_cut, compared)
    cut_score_R = torch.where(n_at_cut_R > 0, grouped.mean(forest.outcome, at_cut, compared), forest.outcome)
    all_budgets = torch.arange(budgets)
    # A thinking that ends early has the same score at all later budgets; one without cuts at every budget.
    stands_for = (budget[:, None] <= all_budgets) & (all_budgets < (budget + covers)[:, None]) | ~is_cut_R[:, None]
    row, budget_index = stands_for.nonzero(as_tuple=True)
    score = torch.full((n_thinkings, budgets), torch.nan, dtype=torch.float64)
    score[thinking_R[row], budget_index] = cut_score_R[row]
    thinking_group, is_compared = torch.full((n_thinkings,), -1), torch.zeros(n_thinkings, dtype=torch.bool)
    thinking_group[thinking_R] = group
    is_compared[thinking_R[compared]] = True
    # Thinking tokens between two budgets have the advantage of the scores behind them.
    thinking_advantage = budget_relative(
        score, thinking_group, budget_prior(budgets, prior), growth, is_compared, singleton
    )
    # An answer is compared with others after the same cut, or, alone there, with the group's at that budget.
    answer_advantage_R = torch.where(
        n_at_cut_R > 1,
        grouped.normalize(forest.outcome, at_cut, compared, scale="none"),
        grouped.normalize(forest.outcome, at_budget, compared, scale="none"),
    )
    owner_P = forest.path_trajectory
    segment_P = torch.where(is_cut_R[owner_P], forest.segment[forest.path_token].clamp(0, budgets - 1), 0)
    is_answer_P = is_cut_R[owner_P] & (forest.step_turn[forest.path_step] > 0)
    return torch.where(is_answer_P, answer_advantage_R[owner_P], thinking_advantage[thinking_R[owner_P], segment_P])


def _info_number(forest: Forest, key: str, default: int) -> Tensor:
    """[R] int64: a number from the info of every trajectory that has a thinking, `default` for others."""
    return torch.tensor([info[key] if "thinking" in info else default for info in forest.info])
