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
    """Count calls of rollouts, some of which have tools, and their outcomes; rates are None in a step without calls."""
    n_episodes = sum("tools" in info for info in forest.info)
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
