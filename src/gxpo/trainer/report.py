"""`report.html`: one self-contained page of a run (curves, sample rollouts, configuration), without script."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from gxpo.page.chart import Point, svg_chart
from gxpo.trainer import metrics
from gxpo.trainer.checkpoint import write_atomic

Row = Mapping[str, Any]

# title, unit, legend -> metric
CHARTS: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("Training reward", "mean per rollout", {"reward": "reward_mean", "success rate": "success_rate"}),
    ("Held-out accuracy", "share of tasks, with 95% interval", {"accuracy": "eval_accuracy"}),
    ("Groups without signal", "share of groups", {"zero signal": "zero_signal_groups"}),
    ("Entropy", "nats per token", {"entropy": "entropy"}),
    ("KL", "nats per token", {"from the reference": "kl", "within the step": "approx_kl"}),
    ("Clipped", "share of tokens", {"clip fraction": "clip_fraction"}),
    ("Completion length", "tokens", {"mean length": "length_mean"}),
    ("Cut at the length limit", "share of rollouts", {"truncated": "truncated_rate"}),
    ("Gradient norm", "before clipping", {"gradient norm": "grad_norm"}),
    ("Speed", "tokens per second",
     {"sampling": "time_sample_tokens_per_s", "update": "time_update_tokens_per_s"}),
)  # fmt: skip
LONGEST_TEXT = 2000  # characters of a prompt or completion that are shown
SHOWN_GROUPS = 4  # groups of which the best and the worst rollout are shown

STYLE = """
:root{color-scheme:light dark;--ink:#1d2330;--soft:#5b6475;--line:#d9dde5;--card:#f6f7f9;--page:#fff}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ef;--soft:#a3acbb;--line:#3a4250;--card:#1e232c;--page:#14181f}}
*{box-sizing:border-box}
body{margin:2rem auto;max-width:76rem;padding:0 1rem;background:var(--page);color:var(--ink);
font:15px/1.5 system-ui,sans-serif}
h1{font-size:1.6rem;margin:0}h2{font-size:1.15rem;margin:2.2rem 0 .6rem}p{color:var(--soft);margin:.3rem 0}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(22rem,1fr));gap:1rem}
figure{margin:0;background:var(--card);border-radius:8px;padding:.6rem}svg{width:100%;height:auto;display:block}
figcaption{color:var(--soft);font-size:12px;padding:0 .4rem}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:13px}
th,td{text-align:left;vertical-align:top;padding:.35rem .6rem;border-bottom:1px solid var(--line)}
th{color:var(--soft);font-weight:600}td.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
pre{margin:0;white-space:pre-wrap;overflow-wrap:anywhere;font:12px/1.45 ui-monospace,monospace}
pre.config{background:var(--card);padding:.8rem;border-radius:8px}
.figures{width:auto}
"""


def write_report(run: Path | str) -> Path:
    """Write `report.html` of a run directory from what stands in it so far; gives its path.

    Reads metrics.jsonl, evaluations.jsonl (held-out figures, the first before any step), config.yaml and the first and
    the last file of rollouts/. Everything that a model or a user wrote is escaped.
    """
    run = Path(run)
    rows = metrics.read(run / "metrics.jsonl")
    evaluations = metrics.read(run / "evaluations.jsonl") or [r for r in rows if "eval_accuracy" in r]
    config = run / "config.yaml"
    text = config.read_text(encoding="utf-8", errors="replace") if config.is_file() else "no config.yaml yet"
    title = f"gxpo run {escape(run.resolve().name)}"
    page = (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        f"<title>{title}</title><style>{STYLE}</style></head>\n<body><h1>{title}</h1>\n"
        f"<h2>Figures</h2>\n{_figures(rows, evaluations)}\n"
        f"<h2>Curves</h2>\n{_curves(rows, evaluations)}\n"
        f"<h2>Sample rollouts</h2>\n{_samples(run / 'rollouts')}\n"
        f'<h2>Configuration</h2>\n<pre class="config">{escape(text)}</pre>\n</body></html>\n'
    )
    path = run / "report.html"
    write_atomic(path, page.encode("utf-8", "replace"))  # a record may hold half a surrogate pair
    return path


def summary(rows: Sequence[Row], evaluations: Sequence[Row]) -> list[tuple[str, str]]:
    """Closing figures of a run as (what, value)."""
    out: list[tuple[str, str]] = [("steps", str(rows[-1]["step"]) if rows else "none yet")]
    measured = [e for e in evaluations if e.get("eval_accuracy") is not None]
    if measured:
        first, last = measured[0], measured[-1]
        out.append((f"held-out accuracy, step {first['step']}", _accuracy(first)))
        if last is not first:
            gain = last["eval_accuracy"] - first["eval_accuracy"]
            out.append((f"held-out accuracy, step {last['step']}", _accuracy(last)))
            out.append(("change", f"{gain:+.3f}"))
        if last.get("eval_tasks") is not None:
            out.append(("held-out tasks", f"{last['eval_tasks']:.0f}"))
        for name, value in last.items():
            if name.startswith("eval_pass_at_") and value is not None:
                out.append((f"held-out pass@{name.removeprefix('eval_pass_at_')}", f"{value:.3f}"))
    if not rows:
        return out
    end = rows[-1]
    for label, name in (
        ("tokens generated", "generated_tokens"),
        ("rollouts discarded", "discarded_rollouts"),
        ("steps without an update", "empty_steps"),
        ("optimiser steps skipped, gradient not finite", "nonfinite_steps"),
        ("CRC-32 of the weights", "weights_crc"),
    ):
        if end.get(name) is not None:
            out.append((label, f"{end[name]:,}" if name != "weights_crc" else str(end[name])))
    out.append(("rollouts unscored", f"{sum(r.get('unscored') or 0 for r in rows):,}"))
    for label, name in (("time of all steps", "time_step_s"), ("of it sampling", "time_sample_s"),
                        ("of it scoring", "time_score_s"), ("of it updating", "time_update_s")):  # fmt: skip
        if any(r.get(name) is not None for r in rows):
            out.append((label, _duration(sum(r.get(name) or 0.0 for r in rows))))
    return out


def _accuracy(row: Row) -> str:
    text = f"{row['eval_accuracy']:.3f}"
    if row.get("eval_low") is not None and row.get("eval_high") is not None:
        text += f" (95% interval {row['eval_low']:.3f} to {row['eval_high']:.3f})"
    return text


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min {rest} s"


def _figures(rows: Sequence[Row], evaluations: Sequence[Row]) -> str:
    lines = "".join(f"<tr><th>{escape(k)}</th><td>{escape(v)}</td></tr>" for k, v in summary(rows, evaluations))
    return f'<div class="scroll"><table class="figures">{lines}</table></div>'


def _curves(rows: Sequence[Row], evaluations: Sequence[Row]) -> str:
    drawn, missing = [], []
    for title, unit, names in CHARTS:
        source = evaluations if title == "Held-out accuracy" else rows
        series = {label: _points(source, name) for label, name in names.items()}
        missing += [name for label, name in names.items() if not series[label]]
        series = {label: points for label, points in series.items() if points}
        if not series:
            continue
        bands = {}
        if "accuracy" in series:
            bands["accuracy"] = [(float(r["step"]), float(r["eval_low"]), float(r["eval_high"])) for r in source
                                 if r.get("eval_low") is not None and r.get("eval_high") is not None]  # fmt: skip
        caption = "; ".join(f"{label}: {metrics.meaning(names[label])}" for label in series)
        chart = svg_chart(
            series, title=title, y_label=unit, bands=bands, y_range=(0.0, 0.0) if title == "Speed" else None
        )
        drawn.append(f"<figure>{chart}<figcaption>{escape(caption)}</figcaption></figure>")
    note = f"<p>Not measured in this run: {escape(', '.join(missing))}.</p>" if missing else ""
    return f'<div class="charts">{"".join(drawn)}</div>{note}' if drawn else "<p>No step has ended yet.</p>"


def _points(rows: Iterable[Row], name: str) -> list[Point]:
    return [(float(r["step"]), float(r[name])) for r in rows if r.get(name) is not None]


def _samples(folder: Path) -> str:
    files = sorted(folder.glob("step-*.jsonl"))
    if not files:
        return "<p>No rollouts written yet.</p>"
    return "".join(_sample_table(path) for path in dict.fromkeys((files[0], files[-1])))


def _sample_table(path: Path) -> str:
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
    body = "".join(_sample_row(r) for r in shown)
    note = f"; {unread} lines of {path.name} can't be read" if unread else ""
    heading = f"{path.stem.replace('-', ' ')}: best and worst rollout of {len({_group(r) for r in shown})} groups{note}"
    columns = ("task", "prompt", "completion", "outcome", "components", "advantage")
    head = "".join(f"<th>{c}</th>" for c in columns)
    return f'<p>{escape(heading)}</p><div class="scroll"><table><tr>{head}</tr>{body}</table></div>'


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


def _sample_row(record: Mapping[str, Any]) -> str:
    rewards, info = record.get("rewards"), record.get("info")
    components = "\n".join(f"{k}: {_number(v)}" for k, v in rewards.items()) if isinstance(rewards, dict) else ""
    advantage = info.get("advantage") if isinstance(info, dict) else None
    outcome = "unscored" if record.get("reward") is None else _number(record["reward"])
    return (
        f"<tr><td>{escape(_short(str(record.get('task') or _group(record))))}</td>"
        f"<td><pre>{escape(_short(_prompt(record)))}</pre></td><td><pre>{escape(_short(_completion(record)))}</pre></td>"
        f'<td class="n">{escape(outcome)}</td><td><pre>{escape(components)}</pre></td>'
        f'<td class="n">{escape("" if advantage is None else _number(advantage))}</td></tr>'
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
