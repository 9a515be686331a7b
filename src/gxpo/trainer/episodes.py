"""The figures of a step's episodes, where the task is an environment."""

from __future__ import annotations

from typing import Any

from gxpo.envs.pool import FAILURES
from gxpo.forest import Forest


def of_episodes(forest: Forest) -> dict[str, Any]:
    """How the episodes among the rollouts went: those that have an end."""
    ends = [info["end"] for info in forest.info if "end" in info]
    ended = ["end" in info for info in forest.info]  # others are single steps that belong to no episode
    steps = zip(forest.step_info, forest.step_trajectory.tolist(), strict=True)
    moves = [info for info, r in steps if ended[r] and not {"summary", "aside"} & info.keys()]
    errors = [info.get("action_error") for info in moves]
    return {
        "turns_mean": len(moves) / len(ends),
        "malformed_rate": errors.count("malformed") / max(1, len(moves)),
        "illegal_rate": errors.count("illegal") / max(1, len(moves)),
        "cut_action_rate": forest.step_finish.count("length") / max(1, forest.n_steps),
        "turn_limit_rate": (ends.count("turns") + ends.count("truncated")) / len(ends),
        "context_limit_rate": ends.count("context") / len(ends),
        "summaries": sum("summary" in info for info in forest.step_info),
        "rewritten_contexts": sum(info.get("rewritten", 0) for info in forest.info),
        "kept_against_template": sum(info.get("kept", 0) for info in forest.info),
        **{f"env_{kind}": ends.count(kind) for kind in FAILURES},
    }
