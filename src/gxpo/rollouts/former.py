"""Former names of rollout parts."""

from __future__ import annotations

from gxpo.former import Former

FORMER = {
    "allotted": Former("adaptive_group_size"),
    "branch_at_surprise": Former("turn_branches"),
    "budgets": Former("thinking_budgets"),
    "candidates": Former("step_candidates"),
    "continuations": Former("monte_carlo_values"),
    "fork_open": Former("turn_branches", options={"choose": "uniform", "initial": "all", "group_size": 8}),
    "revise": Former("cut_and_regenerate"),
    "staged": Former("retry_until_solved"),
    "tempered": Former("hot_cold_replay"),
    "vote": Former("oversample_for_vote"),
    "windowed": Former("partial_rollouts"),
    "with_baseline": Former("baseline_rollouts"),
}
