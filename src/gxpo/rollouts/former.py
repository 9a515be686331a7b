"""Former names of rollout parts."""

from __future__ import annotations

from gxpo.former import Former

FORMER = {
    "budgets": Former("thinking_budgets"),
    "candidates": Former("step_candidates"),
    "continuations": Former("monte_carlo_values"),
}
