"""The best and the worst rollouts of a step, as the report shows them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gxpo.page import Html, paragraph, preformatted, table

LONGEST_TEXT = 2000  # characters of a prompt or completion that are shown
SHOWN_GROUPS = 4  # groups of which the best and the worst rollout are shown
COLUMNS = ("task", "prompt", "completion", "outcome", "components", "advantage")


def samples(folder: Path) -> list[Html]:
    """Tables of the first and the last file of rollouts in the folder."""
    files = sorted(folder.glob("step-*.jsonl"))
    if not files:
        return [paragraph("No rollouts written yet.")]
    return [_sample_table(path) for path in dict.fromkeys((files[0], files[-1]))]


def _sample_table(path: Path) -> Html:
    records, unread = [], 0
    for line in path.read_bytes().splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if isinstance(record, dict):
            records.append(record)
        else:
            unread += 1
    shown = _contrasts(records)
    note = f"; {unread} lines of {path.name} can't be read" if unread else ""
    heading = f"{path.stem.replace('-', ' ')}: best and worst rollout of {len({_group(r) for r in shown})} groups{note}"
    rows = [_sample_row(r) for r in shown]
    return table(COLUMNS, rows, numbers=("outcome", "advantage"), caption=heading, wide=True)


def _group(record: Mapping[str, Any]) -> str:
    return str(record.get("group"))


def _contrasts(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rollouts with the largest and the smallest outcome of the first groups that have two, then of any."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        groups.setdefault(_group(record), []).append(record)
    pairs = []
    for members in groups.values():
        known = [r for r in members if isinstance(r.get("reward"), int | float)] or members
        best, worst = max(known, key=_outcome), min(known, key=_outcome)
        pairs.append([best] if _outcome(best) == _outcome(worst) else [best, worst])
    pairs.sort(key=len, reverse=True)  # stable: groups keep their order
    return [r for pair in pairs[:SHOWN_GROUPS] for r in pair]


def _outcome(record: Mapping[str, Any]) -> float:
    value = record.get("reward")
    return float(value) if isinstance(value, int | float) else 0.0


def _sample_row(record: Mapping[str, Any]) -> tuple[str, ...]:
    rewards, info = record.get("rewards"), record.get("info")
    components = "\n".join(f"{k}: {_number(v)}" for k, v in rewards.items()) if isinstance(rewards, dict) else ""
    advantage = info.get("advantage") if isinstance(info, dict) else None
    return (
        _short(str(record.get("task") or _group(record))),
        preformatted(_short(_prompt(record))),
        preformatted(_short(_completion(record))),
        "unscored" if record.get("reward") is None else _number(record["reward"]),
        preformatted(components),
        "" if advantage is None else _number(advantage),
    )


def _prompt(record: Mapping[str, Any]) -> str:
    fork = record.get("fork")
    if isinstance(fork, dict):
        return f"(goes on from turn {fork.get('turn')} of {fork.get('of')})"
    return _text(record, "prompt_text", "prompt")


def _completion(record: Mapping[str, Any]) -> str:
    """The actions; from the second turn on with what was observed before."""
    turns = record.get("turns")
    parts = []
    for i, turn in enumerate(turns if isinstance(turns, list) else []):
        if isinstance(turn, dict):
            seen = _text(turn, "observation_text", "observation") if i else ""
            parts += [f"[observed] {seen}"] if seen else []
            parts.append(_text(turn, "action_text", "action") + (" [cut]" if turn.get("finish") == "length" else ""))
    return "\n".join(parts)


def _text(holder: Mapping[str, Any], text: str, ids: str) -> str:
    if isinstance(holder.get(text), str):
        return holder[text]
    return f"tokens {holder[ids]}" if holder.get(ids) else ""


def _short(text: str) -> str:
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]} [and {len(text) - LONGEST_TEXT} characters]"


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else str(value)
