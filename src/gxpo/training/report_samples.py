"""The best and the worst rollouts of a step, as the report shows them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gxpo.base.page import Html, paragraph, preformatted, table
from gxpo.training.callbacks.samples import completion_of, contrasts, group_of, prompt_of

LONGEST_TEXT = 2000  # characters of a prompt or completion that are shown
SHOWN_GROUPS = 4  # groups of which the best and the worst rollout are shown
COLUMNS = ("task", "prompt", "completion", "outcome", "components", "advantage")


def samples(folder: Path) -> list[Html]:
    """Tables of the first and the last file of rollouts in the folder."""
    files = sorted(folder.glob("step-*.jsonl"))
    if not files:
        return [paragraph("No rollouts written yet.")]
    return [table_of(path) for path in dict.fromkeys((files[0], files[-1]))]


def table_of(path: Path) -> Html:
    """The best and the worst rollouts of a file."""
    records, unread = [], 0
    for line in path.read_bytes().splitlines():
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if isinstance(record, dict):
            records.append(record)
        else:
            unread += 1
    shown = _shown(records)
    note = f"; {unread} lines of {path.name} can't be read" if unread else ""
    heading = (
        f"{path.stem.replace('-', ' ')}: best and worst rollout of {len({group_of(r) for r in shown})} groups{note}"
    )
    rows = [_sample_row(r) for r in shown]
    return table(COLUMNS, rows, numbers=("outcome", "advantage"), caption=heading, wide=True)


def _shown(records: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The best and the worst rollout of the first groups that have two, then of any."""
    found = contrasts(records)
    groups = list(dict.fromkeys(map(group_of, found)))[:SHOWN_GROUPS]
    return [r for r in found if group_of(r) in groups]


def _sample_row(record: Mapping[str, Any]) -> tuple[str, ...]:
    rewards, info = record.get("rewards"), record.get("info")
    components = "\n".join(f"{k}: {_number(v)}" for k, v in rewards.items()) if isinstance(rewards, dict) else ""
    advantage = info.get("advantage") if isinstance(info, dict) else None
    return (
        _short(str(record.get("task") or group_of(record))),
        preformatted(_short(prompt_of(record))),
        preformatted(_short(completion_of(record))),
        "unscored" if record.get("reward") is None else _number(record["reward"]),
        preformatted(components),
        "" if advantage is None else _number(advantage),
    )


def _short(text: str) -> str:
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]} [and {len(text) - LONGEST_TEXT} characters]"


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else str(value)
