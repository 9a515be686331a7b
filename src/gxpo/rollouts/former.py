"""Former names of rollout parts."""

from __future__ import annotations

from gxpo.former import Former

_HINT = {"how": "each_hint", "keep": "right_for_first", "warmup_steps": 50}
_RETRY = {"when": "unsolved", "how": "more", "keep": "everything", "reuse": True}
_VOTE = {"when": "always", "how": "voters", "keep": "numbered"}
FORMER = {
    "last_step_again": Former("group_replay", {"choice": "all", "max_groups": 0}),
    "replay_by_advantage": Former("group_replay"),
    "best_draft": Former("again", {"when": "always", "how": "best_draft", "keep": "newest"}),
    "growing_hint": Former("again", {"how": "next_hint", "keep": "newest"}),
    "least_hint": Former("again", _HINT),
    "oversample_for_vote": Former("again", _VOTE),
    "reference_on_failure": Former("again", {"how": "reference", "keep": "for_last_failure"}),
    "retry_until_solved": Former("again", _RETRY),
    "allotted": Former("adaptive_group_size"),
    "branch_at_surprise": Former("turn_branches"),
    "budgets": Former("thinking_budgets"),
    "candidates": Former("step_candidates"),
    "continuations": Former("monte_carlo_values"),
    "fork_open": Former("turn_branches", options={"choose": "uniform", "initial": "all", "group_size": 8}),
    "revise": Former("cut_and_regenerate"),
    "staged": Former("again", _RETRY),
    "tempered": Former("hot_cold_replay"),
    "vote": Former("again", _VOTE),
    "windowed": Former("partial_rollouts"),
    "with_baseline": Former("baseline_rollouts"),
}
