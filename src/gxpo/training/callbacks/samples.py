"""Rollouts as rows of a table that people read: what loggers show, and the report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

COLUMNS = ("step", "set", "task", "prompt", "completion", "reward", "success", "advantage", "answer", "tokens")


def rows(records: Sequence[Mapping[str, Any]], *, step: int, set: str, most: int) -> list[dict[str, Any]]:
    """At most `most` of the records (`gxpo schema`) under `COLUMNS`: the best and the worst of each group first.

    set  "train", or "eval" for held-out tasks
    """
    return [{"step": step, "set": set, **_row(record)} for record in contrasts(records)[:most]]


def tables(found: Sequence[Mapping[str, Any]], table: Callable[..., Any]) -> dict[str, Any]:
    """A logger's table of each set of `rows`, by the name that it is logged under."""
    out = {}
    for name in dict.fromkeys(row["set"] for row in found):
        data = [[row[column] for column in COLUMNS] for row in found if row["set"] == name]
        out[f"samples/{name}"] = table(columns=list(COLUMNS), data=data)
    return out


def contrasts(records: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rollouts with the largest and the smallest outcome of each group that has two, then one of each other."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        groups.setdefault(group_of(record), []).append(record)
    pairs = []
    for members in groups.values():
        known = [r for r in members if isinstance(r.get("reward"), int | float)] or members
        best, worst = max(known, key=outcome_of), min(known, key=outcome_of)
        pairs.append([best] if outcome_of(best) == outcome_of(worst) else [best, worst])
    pairs.sort(key=len, reverse=True)  # stable: groups keep their order
    return [r for pair in pairs for r in pair]


def group_of(record: Mapping[str, Any]) -> str:
    return str(record.get("group"))


def outcome_of(record: Mapping[str, Any]) -> float:
    value = record.get("reward")
    return float(value) if isinstance(value, int | float) else 0.0


def prompt_of(record: Mapping[str, Any]) -> str:
    """The prompt's text; of a fork, where it goes on."""
    fork = record.get("fork")
    if isinstance(fork, dict):
        return f"(goes on from turn {fork.get('turn')} of {fork.get('of')})"
    return _text(record, "prompt_text", "prompt")


def completion_of(record: Mapping[str, Any], *, cut: str = " [cut]") -> str:
    """The actions; from the second turn on with what was observed before. `cut`: what stands behind an action that
    reached the length limit."""
    turns = record.get("turns")
    parts = []
    for i, turn in enumerate(turns if isinstance(turns, list) else []):
        if isinstance(turn, dict):
            seen = _text(turn, "observation_text", "observation") if i else ""
            parts += [f"[observed] {seen}"] if seen else []
            parts.append(_text(turn, "action_text", "action") + (cut if turn.get("finish") == "length" else ""))
    return "\n".join(parts)


def _text(holder: Mapping[str, Any], text: str, ids: str) -> str:
    if isinstance(holder.get(text), str):
        return holder[text]
    return f"tokens {holder[ids]}" if holder.get(ids) else ""


def _row(record: Mapping[str, Any]) -> dict[str, Any]:
    info = record.get("info") or {}
    answer = info.get("answer")
    return {
        "task": str(record.get("task") or group_of(record)),
        "prompt": prompt_of(record),
        "completion": completion_of(record),
        "reward": record.get("reward"),
        "success": record.get("success"),
        "advantage": info.get("advantage"),
        "answer": None if answer is None else str(answer),
        "tokens": sum(len(turn.get("action", ())) for turn in record.get("turns", ())),
    }
