"""`report.html`: one page of a run, without script: verdict, curves, sample rollouts, figures, configuration."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gxpo.base.page import Html, charts, folded, masthead, page, paragraph, preformatted, section, svg_chart, table
from gxpo.base.page.chart import Point
from gxpo.doctor.finding import Diagnosis
from gxpo.doctor.html import verdict_panel
from gxpo.training import metrics
from gxpo.training.callbacks.samples import completion_of, contrasts, group_of, prompt_of
from gxpo.training.checkpoint import write_atomic
from gxpo.training.picture_strips import strips

Row = Mapping[str, Any]

# title, unit, whether it is a share, one line of plain words, legend -> metric
CHARTS: tuple[tuple[str, str, bool, str, dict[str, str]], ...] = (
    ("Held-out accuracy", "share of tasks, with 95% interval", True,
     "Questions that it is never trained on: what counts.", {"accuracy": "eval_accuracy"}),
    ("Training reward", "mean per rollout", False, "Should rise, with noise.", {"reward": "reward_mean"}),
    ("Success rate", "share of rollouts", True, "Answers that the task calls right.", {"success rate": "success_rate"}),
    ("Zero-signal groups", "share of groups", True, "All answers equally good: these groups teach nothing.",
     {"all": "zero_signal_groups", "all right": "zero_signal_all_right", "all wrong": "zero_signal_all_wrong"}),
    ("Entropy", "nats per token", False, "How undecided the policy is; near 0 it gives one answer only.",
     {"of trained tokens": "entropy", "of sampled tokens": "entropy_sampled"}),
    ("KL", "nats per token", False, "How far the policy has moved.",
     {"from the reference": "kl", "within the step": "approx_kl"}),
    ("Clipped", "share of tokens", True, "Tokens that were pushed far enough in the step.",
     {"clip fraction": "clip_fraction"}),
    ("Completion length", "tokens", False, "Mean length of an answer.", {"mean length": "length_mean"}),
    ("Cut at the length limit", "share of rollouts", True, "Answers that did not end in time.",
     {"truncated": "truncated_rate"}),
    ("Gradient norm", "before clipping", False, "Size of the push; a jump is a warning.",
     {"gradient norm": "grad_norm"}),
    ("Speed", "tokens per second", False, "Higher is faster.",
     {"sampling": "time_sample_tokens_per_s", "update": "time_update_tokens_per_s"}),
)  # fmt: skip


def write_report(run: Path | str, diagnosis: Diagnosis | None = None) -> Path:
    """Write `report.html` of a run directory from its files so far; return its path.

    Reads metrics.jsonl, evaluations.jsonl (held-out figures, the first before any step), config.yaml and the first and
    the last file of rollouts/. Everything that a model or a user wrote is escaped. `diagnosis`: the doctor's, which
    the page begins with.
    """
    run = Path(run)
    rows = metrics.read(run / "metrics.jsonl")
    evaluations = metrics.read(run / "evaluations.jsonl") or [r for r in rows if "eval_accuracy" in r]
    config = run / "config.yaml"
    config_text = config.read_text(encoding="utf-8", errors="replace") if config.is_file() else "no config.yaml yet"
    title, facts = _names(config_text, run.resolve().name)
    facts.append(f"step {rows[-1]['step']}" if rows else "no step yet")
    body = masthead(title, facts)
    if diagnosis is not None:
        body += verdict_panel(diagnosis)
    body += section("Curves", *curves(rows, evaluations))
    if pictures := strips(run / "rollouts"):
        body += section("Pictures", *pictures)
    body += section("Sample rollouts", *samples(run / "rollouts"))
    body += section("Figures", table(("", ""), summary(rows, evaluations)))
    body += section("Configuration", folded("config.yaml", preformatted(config_text, boxed=True)))
    path = run / "report.html"
    write_atomic(path, page(title, body).encode("utf-8", "replace"))
    return path


def _names(config: str, directory: str) -> tuple[str, list[str]]:
    """Title of the page and the facts under it: method, model and task from the configuration."""
    values = dict(re.findall(r"^(method|model|task|seed):[ \t]+(.*?)(?:[ \t]+#.*)?$", config, re.MULTILINE))
    title_words = [str(values[k]) for k in ("method", "model", "task") if k in values]
    title = f"{title_words[0]} on {title_words[-1]}" if len(title_words) == 3 else f"gxpo run {directory}"
    facts = [f"model {values['model']}"] if "model" in values else []
    return title, [*facts, *([f"seed {values['seed']}"] if "seed" in values else []), f"run {directory}"]


def summary(rows: Sequence[Row], evaluations: Sequence[Row]) -> list[tuple[str, str]]:
    """Closing figures of a run as rows of (label, value)."""
    out: list[tuple[str, str]] = [("steps", str(rows[-1]["step"]) if rows else "none yet")]
    measurements = [e for e in evaluations if e.get("eval_accuracy") is not None]
    if measurements:
        first, last = measurements[0], measurements[-1]
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
    # Counters in the last line cover the run; unscored rollouts and times are of each step.
    if not rows:
        return out
    end = rows[-1]
    for label, name in (
        ("tokens generated", "generated_tokens"),
        ("rollouts discarded", "discarded_rollouts"),
        ("steps without an update", "empty_steps"),
        ("optimiser steps skipped, gradient not finite", "nonfinite_steps"),
        ("fingerprint of the weights", "weights_fingerprint"),
    ):
        if end.get(name) is not None:
            out.append((label, f"{end[name]:,}" if name != "weights_fingerprint" else str(end[name])))
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


def curves(rows: Sequence[Row], evaluations: Sequence[Row], only: Collection[str] | None = None) -> list[Html]:
    """Draw the charts of a run (`only`: those with these titles), and a line that names those without values."""
    plots, missing_titles = [], []
    for title, unit, share, plain_words, names in CHARTS:
        if only is not None and title not in only:
            continue
        source = evaluations if title == "Held-out accuracy" else rows
        series = {label: _points(source, name) for label, name in names.items()}
        if not any(series.values()):
            missing_titles.append(title)
            continue
        series = {label: points for label, points in series.items() if points}
        if title == "Training reward" and series["reward"] == _points(rows, "success_rate"):
            continue  # the same curve again
        bands = {}
        if "accuracy" in series:
            bands["accuracy"] = [(float(r["step"]), float(r["eval_low"]), float(r["eval_high"])) for r in source
                                 if r.get("eval_low") is not None and r.get("eval_high") is not None]  # fmt: skip
        definitions = [f"{label}: {metrics.meaning(names[label])}" for label in series]
        is_zero = all(y == 0 for points in series.values() for _, y in points)  # such as the KL within an only update
        fixed_range = (0.0, 1.0) if share or is_zero else (0.0, 0.0) if title == "Speed" else None
        chart = svg_chart(series, title=title, y_label=unit, bands=bands, y_range=fixed_range)
        plots.append((chart, paragraph(plain_words) + folded("definition", *map(paragraph, definitions))))
    if not plots:
        return [paragraph("No step has ended yet.")]
    note = [paragraph(f"Not measured: {', '.join(missing_titles).lower()}.", soft=True)] if missing_titles else []
    return [charts(plots), *note]


def _points(rows: Iterable[Row], name: str) -> list[Point]:
    return [(float(r["step"]), float(r[name])) for r in rows if r.get(name) is not None]


# ---------------------------------------------------------------- sample rollouts
LONGEST_TEXT = 2000  # characters of a prompt or completion that are shown
SHOWN_GROUPS = 4  # groups of which the best and the worst rollout are shown
COLUMNS = ("task", "prompt", "completion", "outcome", "components", "advantage")


def samples(folder: Path) -> list[Html]:
    """Tables of the first and the last file of rollouts in the folder."""
    files = sorted(folder.glob("step-*.jsonl"))
    if not files:
        return [paragraph("No rollouts written yet.")]
    return [rollout_table(path) for path in dict.fromkeys((files[0], files[-1]))]


def rollout_table(path: Path) -> Html:
    """Table of the best and worst rollouts of a file."""
    records, n_unread = [], 0
    for line in path.read_bytes().splitlines():
        try:
            # A killed run's last line may be cut.
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if isinstance(record, dict):
            records.append(record)
        else:
            n_unread += 1
    examples = _best_and_worst(records)
    note = f"; {n_unread} lines of {path.name} can't be read" if n_unread else ""
    heading = (
        f"{path.stem.replace('-', ' ')}: best and worst rollout of {len({group_of(r) for r in examples})} groups{note}"
    )
    rows = [_sample_row(r) for r in examples]
    return table(COLUMNS, rows, numbers=("outcome", "advantage"), caption=heading, wide=True)


def _best_and_worst(records: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Choose the best and worst rollout of the first groups that have two, then of any."""
    records_in_contrast = contrasts(records)
    groups = list(dict.fromkeys(map(group_of, records_in_contrast)))[:SHOWN_GROUPS]
    return [r for r in records_in_contrast if group_of(r) in groups]


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
