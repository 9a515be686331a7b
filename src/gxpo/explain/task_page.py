"""Text of the report of `gxpo tasks`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def text(r: Mapping[str, Any], show: int = 1) -> str:
    """Format a report of `task_report.report` for a terminal, with the first `show` prompts in full."""
    kind = "" if r["complete"] else ", generated: as many as were asked for"
    lines = [f"{r['task']}: {r['training']} training tasks, {r['held_out']} held out{kind}"]
    if r["model"] is None:
        lines.append("lengths in characters; --model MODEL shows prompts as that model sees them, and counts tokens")
    else:
        limit = "no limit" if r["context_limit"] is None else f"{r['context_limit']:,} tokens"
        lines.append(f"model {r['model']}: context {limit}, sampling.max_new_tokens={r['max_new_tokens']}")
    lines += ["", *_columns(r), "", *_lengths(r)]
    for prompt in r["prompts"][:show]:
        lines += ["", f"prompt of {prompt['id']} (answer {prompt['answer']!r}):", *_indented(prompt["text"])]
    lines += ["", *_reward(r["reward"]), ""]
    lines += [f"warning: {w}" for w in r["warnings"]] or ["no warning"]
    return "\n".join(lines)


def _columns(r: Mapping[str, Any]) -> list[str]:
    rows: list[tuple[str, ...]] = [("column", "tasks", "kind", "first")]
    for name, entry in r["columns"].items():
        rows.append((name, str(entry["tasks"]), ", ".join(entry["kinds"]), entry["example"]))
    return _aligned(rows)


def _lengths(r: Mapping[str, Any]) -> list[str]:
    rows: list[tuple[str, ...]] = [(f"length in {r['unit']}", "min", "median", "max")]
    for name, key in (("prompt", "prompt_lengths"), ("answer", "answer_lengths")):
        if (lengths := r[key]) is not None:
            rows.append((name, *(f"{lengths[x]:g}" for x in ("min", "median", "max"))))
    return _aligned(rows)


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]


def _indented(text: str) -> list[str]:
    return [f"  | {line}" for line in text.split("\n")]


def _reward(reward: Mapping[str, Any] | None) -> list[str]:
    if reward is None:
        return ["no reward was tried: no task has an answer"]
    if "skipped" in reward:
        return [reward["skipped"]]
    score_by_form = {name: "unscored" if value is None else f"{value:.3g}" for name, value in reward["forms"].items()}
    right = f"reference answer {score_by_form[reward['form']]}, written as {reward['example'][:60]!r}"
    others = ", ".join(
        f"{name} {'-' if reward[name] is None else f'{reward[name]:.3g}'}" for name in ("empty", "wrong")
    )
    return [
        f"reward {reward['name']} on {reward['tasks']} tasks, mean: {right}; {others}",
        "  in other forms: "
        + ", ".join(f"{name} {value}" for name, value in score_by_form.items() if name != reward["form"]),
    ]
