"""A run as a plot, as HTML for notebooks, and as pandas tables."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gxpo.base.errors import ConfigError, need, one_of
from gxpo.base.page import Html, folded, paragraph, table
from gxpo.training.callbacks.samples import completion_of, prompt_of
from gxpo.training.directory import EVALUATIONS, METRICS
from gxpo.training.metrics import read
from gxpo.training.report import CHARTS, curves, rollout_table, summary

TABLES = ("metrics", "evaluations", "samples")
SHOWN = ("Held-out accuracy", "Training reward", "Groups without signal", "Completion length")  # charts of a notebook
STYLE = (
    "<style>.gxpo .charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(22rem,1fr));gap:.5rem}"
    ".gxpo figure{margin:0}.gxpo figcaption{display:none}"
    ".gxpo td,.gxpo th{text-align:left;vertical-align:top;padding:.15rem .6rem}"
    ".gxpo pre{white-space:pre-wrap;margin:0}.gxpo .scroll{overflow-x:auto}</style>"
)


def rows_of(run: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Lines of metrics.jsonl and of evaluations.jsonl; none where a run has not begun."""
    return read(run / METRICS), read(run / EVALUATIONS)


def table_of(run: Path, which: str) -> Any:
    """A `pandas.DataFrame` of a run's "metrics" (a row a step), "evaluations" (a row each, the first before any step)
    or "samples" (a row a rollout of every step that was written)."""
    one_of("which", which, TABLES)
    pandas: Any = need("pandas", "data")
    if which == "samples":
        return pandas.DataFrame(samples(run))
    metrics, evaluations = rows_of(run)
    return pandas.DataFrame(metrics if which == "metrics" else evaluations)


def samples(run: Path) -> list[dict[str, Any]]:
    """Flatten each rollout in rollouts/ to a row: texts, outcome, components, advantage."""
    rows = []
    for path in sorted((run / "rollouts").glob("step-*.jsonl")):
        step = int(path.stem.rpartition("-")[2])
        for line in path.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            turns = record.get("turns") or [{}]
            info = record.get("info") or {}
            rows.append(
                {
                    "step": step,
                    "task": record.get("task"),
                    "group": record.get("group"),
                    "prompt": prompt_of(record),
                    # Whole texts, not shortened as in the report.
                    "completion": completion_of(record, ending=""),
                    "answer": info.get("answer"),
                    "reward": record.get("reward"),
                    **{f"reward_{name}": x for name, x in (record.get("rewards") or {}).items()},
                    "success": record.get("success"),
                    "advantage": info.get("advantage"),
                    "tokens": sum(len(turn.get("action") or ()) for turn in turns),
                    "finish": turns[-1].get("finish"),
                }
            )
    return rows


def plot(run: Path, title: str, path: str | Path | None = None) -> Any:
    """A matplotlib `Figure` of the curves of the run's report, those that it has; written to `path` (.png, .svg, .pdf)
    if one is given."""
    need("matplotlib", "plot")
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    class Picture(Figure):
        """Shown by a notebook also before pyplot is imported."""

        def _repr_png_(self) -> bytes:
            buffer = io.BytesIO()
            self.savefig(buffer, format="png", dpi=90)
            return buffer.getvalue()

    # Charts without values are left out, so the grid is as large as what there is to show.
    metrics, evaluations = rows_of(run)
    panels = []
    for name, unit, share, _, series in CHARTS:
        source = evaluations if name == "Held-out accuracy" else metrics
        lines = {label: _line(source, key) for label, key in series.items()}
        lines = {label: points for label, points in lines.items() if points[0]}
        if lines:
            panels.append((name, unit, share, lines))
    if not panels:
        raise ConfigError(f"{run}: no step has ended yet, so there is nothing to plot")
    across = min(3, len(panels))
    down = -(-len(panels) // across)
    figure = Picture(figsize=(4.2 * across, 2.9 * down), layout="constrained")
    for i, (name, unit, share, lines) in enumerate(panels):
        axes = figure.add_subplot(down, across, i + 1)
        # Markers only while points can be told apart.
        for label, (x, y) in lines.items():
            axes.plot(x, y, marker="o" if len(x) <= 60 else None, markersize=2.5, linewidth=1.4, label=label)
        if name == "Held-out accuracy":
            with_interval = [r for r in evaluations if r.get("eval_low") is not None and r.get("eval_high") is not None]
            x, low, high = ([r[k] for r in with_interval] for k in ("step", "eval_low", "eval_high"))
            axes.fill_between(x, low, high, alpha=0.16)
        if share:
            axes.set_ylim(-0.03, 1.03)
        axes.set_title(name, fontsize=10, loc="left", fontweight="bold")
        axes.set_ylabel(unit, fontsize=8)
        axes.set_xlabel("step", fontsize=8)
        axes.tick_params(labelsize=8)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.25)
        if len(lines) > 1:
            axes.legend(fontsize=7, frameon=False)
    figure.suptitle(title, fontsize=10)
    if path is not None:
        figure.savefig(path, dpi=130)
    return figure


def _line(rows: Sequence[Mapping[str, Any]], key: str) -> tuple[list[float], list[float]]:
    points = [(r["step"], r[key]) for r in rows if r.get(key) is not None]
    return [x for x, _ in points], [y for _, y in points]


def html(run: Path, title: str, verdict: str | None) -> str:
    """HTML for notebooks: verdict, curves, the best and worst rollouts of the last written step."""
    metrics, evaluations = rows_of(run)
    paragraphs = [paragraph(Html("<b>{}</b>").format(title))]
    if verdict is not None:
        paragraphs.append(paragraph(verdict))
    files = sorted((run / "rollouts").glob("step-*.jsonl"))
    body = Html("".join(paragraphs))
    body += Html("".join(curves(metrics, evaluations, SHOWN)))
    if files:
        body += folded("Sample rollouts", rollout_table(files[-1]), open=True)
    body += folded("Figures", table(("", ""), summary(metrics, evaluations)))
    return f'<div class="gxpo">{STYLE}{body}</div>'
