"""Table of sample rollouts for loggers and the report: prompt, completion, reward, advantage."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

COLUMNS = ("step", "set", "task", "prompt", "completion", "reward", "success", "advantage", "answer", "tokens")


def rows(records: Sequence[Mapping[str, Any]], *, step: int, set: str, max_rows: int) -> list[dict[str, Any]]:
    """Return rows with `COLUMNS` of at most `max_rows` records (`gxpo schema`), the best and worst of each group first.

    set  "train", or "eval" for held-out tasks
    """
    return [{"step": step, "set": set, **_row(record)} for record in contrasts(records)[:max_rows]]


def tables(samples: Sequence[Mapping[str, Any]], table: Callable[..., Any]) -> dict[str, Any]:
    """Build a logger's table for each set of `rows`, by the name under which it is logged."""
    tables_by_name = {}
    for name in dict.fromkeys(row["set"] for row in samples):
        data = [[row[column] for column in COLUMNS] for row in samples if row["set"] == name]
        tables_by_name[f"samples/{name}"] = table(columns=list(COLUMNS), data=data)
    return tables_by_name


def contrasts(records: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the best and worst rollout of each group whose outcomes differ, then one of each other group."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        groups.setdefault(group_of(record), []).append(record)
    pairs = []
    for members in groups.values():
        # An unscored rollout counts as 0 in `outcome_of`, so it may be neither best nor worst beside scored ones.
        scored_records = [r for r in members if isinstance(r.get("reward"), int | float)] or members
        best, worst = max(scored_records, key=outcome_of), min(scored_records, key=outcome_of)
        pairs.append([best] if outcome_of(best) == outcome_of(worst) else [best, worst])
    pairs.sort(key=len, reverse=True)  # stable: groups keep their order
    return [r for pair in pairs for r in pair]


def group_of(record: Mapping[str, Any]) -> str:
    return str(record.get("group"))


def outcome_of(record: Mapping[str, Any]) -> float:
    value = record.get("reward")
    return float(value) if isinstance(value, int | float) else 0.0


def prompt_of(record: Mapping[str, Any]) -> str:
    """Return the prompt's text; for a fork, the trajectory and turn that it continues."""
    fork = record.get("fork")
    if isinstance(fork, dict):
        return f"(goes on from turn {fork.get('turn')} of {fork.get('of')})"
    return _text_of(record, "prompt_text", "prompt")


def completion_of(record: Mapping[str, Any], *, ending: str = " [cut]") -> str:
    """Return the actions as text, from the second turn on with the observation before each.

    ending  suffix of an action that reached the length limit
    """
    turns = record.get("turns")
    parts = []
    for i, turn in enumerate(turns if isinstance(turns, list) else []):
        if isinstance(turn, dict):
            observation = _text_of(turn, "observation_text", "observation") if i else ""
            parts += [f"[observed] {observation}"] if observation else []
            parts.append(_text_of(turn, "action_text", "action") + (ending if turn.get("finish") == "length" else ""))
    return "\n".join(parts)


def _text_of(record: Mapping[str, Any], text_key: str, ids_key: str) -> str:
    if isinstance(record.get(text_key), str):
        return record[text_key]
    return f"tokens {record[ids_key]}" if record.get(ids_key) else ""


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
