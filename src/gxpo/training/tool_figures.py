"""Figures of calls of tools (`env.mcp`) for metrics.jsonl."""

from __future__ import annotations

from typing import Any

from gxpo.forest.forest import Forest

FAILURES = ("timeout", "died", "unreachable")  # outcomes of a call that its server is to blame for
TOOLS: dict[str, tuple[str, str, str]] = {  # name -> meaning, unit, over: entries of `metrics.NAMES`
    "tool_calls_mean": ("mean number of calls of MCP tools in an episode", "calls", "episodes of the step"),
    "tool_invalid_rate": ("share of calls that no tool was given: unreadable, unknown, or against the schema",
                          "share", "calls of the step"),
    "tool_error_rate": ("share of calls that the tool answered with an error", "share", "calls of the step"),
    "tool_failures": ("calls without an answer: too slow, or the server ended or could not start", "calls", "the step"),
}  # fmt: skip


def tool_figures(forest: Forest) -> dict[str, Any]:
    """Count calls and what came of them; empty for rollouts without tools. Rates are None in a step without calls."""
    n_episodes = sum("tools" in info for info in forest.info)
    if not n_episodes:
        return {}
    outcomes = [
        call["outcome"]
        for info in forest.step_info
        for call in (info["calls"] if isinstance(info.get("calls"), list) else ())
        if isinstance(call, dict) and "outcome" in call
    ]
    return {
        "tool_calls_mean": len(outcomes) / n_episodes,
        "tool_invalid_rate": outcomes.count("invalid") / len(outcomes) if outcomes else None,
        "tool_error_rate": outcomes.count("error") / len(outcomes) if outcomes else None,
        "tool_failures": sum(map(outcomes.count, FAILURES)),
    }


def tool_time(envs: Any) -> dict[str, float]:
    """Seconds that a run's tools have taken so far; empty for a run without tools."""
    return {"time_tools_s": envs.seconds} if getattr(envs, "of_tasks", False) else {}
