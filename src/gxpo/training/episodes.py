"""The figures of a step's episodes: where the task is an environment, and where an agent plays them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gxpo.environments.envs.pool import FAILURES
from gxpo.forest.forest import Forest

AGENT_FAILURES = ("raised", "timeout", "died", "nonsense", "silent")


def of_agents(forest: Forest) -> dict[str, Any]:
    """How the episodes of the user's agent among the rollouts went."""
    played = [(r, info["agent"]) for r, info in enumerate(forest.info) if "agent" in info]
    ends, n = [about["end"] for _, about in played], len(played)
    own = {r for r, _ in played}
    return {
        "agent_calls_mean": sum(r in own for r in forest.step_trajectory.tolist()) / n,
        "agent_contexts_mean": sum(about["contexts"] for _, about in played) / n,
        "agent_overridden_calls": sum(about["overridden"] for _, about in played),
        "agent_call_limit_rate": ends.count("turns") / n,
        "agent_context_limit_rate": ends.count("context") / n,
        **{f"agent_{kind}": ends.count(kind) for kind in AGENT_FAILURES},
    }


def failures_of_agents(forest: Forest) -> dict[str, str]:
    """The first message of each way in which an agent's episode broke, by the metric's name."""
    broken = [info for info in forest.info if "agent" in info and "failure" in info]
    return {f"agent_{info['agent']['end']}": info["failure"] for info in reversed(broken)}


AT_TURN_LIMIT = ("turns", "truncated")  # the run's limit, the environment's own


def at_turn_limit(forest: Forest) -> Tensor:
    """[R] bool: a limit on turns ended the episode; nothing of it was cut."""
    return torch.tensor([info.get("end") in AT_TURN_LIMIT for info in forest.info], dtype=torch.bool)


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
        "turn_limit_rate": sum(map(ends.count, AT_TURN_LIMIT)) / len(ends),
        "context_limit_rate": ends.count("context") / len(ends),
        "summaries": sum("summary" in info for info in forest.step_info),
        "rewritten_contexts": sum(info.get("rewritten", 0) for info in forest.info),
        "kept_against_template": sum(info.get("kept", 0) for info in forest.info),
        **{f"env_{kind}": ends.count(kind) for kind in FAILURES},
    }
