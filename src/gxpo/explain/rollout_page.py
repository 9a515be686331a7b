"""`gxpo explain`: a self-contained page, or JSON, of a step's rollouts under one or several methods."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gxpo.base.page import Html, data, folded, key_figures, masthead, page, paragraph
from gxpo.explain.beside import SecondRun, beside_columns, check_common_tasks
from gxpo.explain.group_figures import MOST_ROLLOUTS, MOST_TOKENS, GroupFigures, choose_groups, figures
from gxpo.explain.outlook import Outlook, look
from gxpo.explain.rollout_columns import columns
from gxpo.explain.rollout_source import Source, read
from gxpo.methods.method import Method
from gxpo.parts.definition import SettingValue
from gxpo.training import config
from gxpo.training.directory import METRICS
from gxpo.training.metrics import read as read_metrics

HERE = Path(__file__).parent
MOST_STEPS = 12  # of a run on one page
SCRIPTS = ("columns.js", "arithmetic.js", "tree.js", "view.js")


Keys = Mapping[str, Any]  # of a method, `method` among them


def explain(path: Path | str, methods: Sequence[str] = (), step: int | None = None) -> str:
    """Write the page of a run directory (its last step, or `step`) or of a file of rollouts, as HTML.

    methods  shown side by side; default: the run's own method, else GRPO
    """
    source = read(Path(path), step)
    return page_text(source, looks_of(source, {name: {"method": name} for name in methods}))


def looks_of(source: Source, methods: Mapping[str, Keys]) -> list[Outlook]:
    """Apply each method to the rollouts; the run's own method, where it is among them, with the run's settings.

    methods  by the name that it is shown under: its keys, as `gxpo.compare.arms.parse_arm` reads them
    """
    run_method = source.method
    own_name = run_method.name if run_method is not None else "grpo"
    looks = []
    for name, keys in (methods or {own_name: {"method": own_name}}).items():
        is_own_run = run_method is not None and dict(keys) == {"method": run_method.name}
        if run_method is not None and is_own_run:
            spec: Method = run_method
        else:
            spec = config.resolve({k: SettingValue(v, "--methods") for k, v in keys.items()}).method
        looks.append(look(spec, source.forest, name=name, horizon=source.horizon, is_own_run=is_own_run))
    return looks


def page_text(
    source: Source,
    looks: Sequence[Outlook],
    *,
    rollouts: int = MOST_ROLLOUTS,
    tokens: int = MOST_TOKENS,
    beside: Source | None = None,
) -> str:
    """Write the page of one step as HTML.

    beside  rollouts of another run or checkpoint, shown under the groups of the same tasks

    Of more than `rollouts` or `tokens` some groups are chosen, and the heading says which are left out.
    """
    if beside is not None:
        check_common_tasks([source], [beside])
    body = _step_head(source, looks, rollouts, tokens, beside=beside)
    return _document(source.title, body[0] + _skeleton() + body[1])


def run_text(
    path: Path,
    steps: Sequence[int],
    methods: Mapping[str, Keys],
    *,
    trust: bool = False,
    max_steps: int = MOST_STEPS,
    beside: SecondRun | None = None,
) -> str:
    """Write the page of a run as HTML: a slider over its steps, with the curve of the reward where one was logged.

    steps   with rollouts, in order; of more than `max_steps` the first, the last and some evenly between are shown
    beside  another run or checkpoint, whose rollouts are shown under the groups of the same tasks

    The limits of one step's page are shared out among the steps.
    """
    shown_steps = steps
    if len(steps) > max_steps:
        shown_steps = sorted({steps[round(i * (len(steps) - 1) / (max_steps - 1))] for i in range(max_steps)})
    heads, blobs, title = Html(""), Html(""), ""
    pairs: list[tuple[Source, Source]] = []
    for step in shown_steps:
        source = read(path, step, trust=trust)
        looks = looks_of(source, methods)
        second_source = None if beside is None else beside.read(step)
        if second_source is not None:
            pairs.append((source, second_source))
        limits = (MOST_ROLLOUTS // len(shown_steps), MOST_TOKENS // len(shown_steps))
        head, blob = _step_head(source, looks, *limits, step, beside=second_source)
        heads += Html('<div id="head-{}" hidden>').format(step) + head + Html("</div>\n")
        blobs += blob
        title = source.title
    check_common_tasks([source for source, _ in pairs], [second_source for _, second_source in pairs])
    rows = read_metrics(path / METRICS) if (path / METRICS).is_file() else []
    curve = [(r["step"], r["reward_mean"]) for r in rows if isinstance(r.get("reward_mean"), int | float)]
    overview = {"steps": shown_steps, "of": len(steps), "curve": curve}
    return _document(title.rpartition(",")[0] or title, heads + _skeleton() + data("steps", overview) + blobs)


def _step_head(
    source: Source,
    looks: Sequence[Outlook],
    rollouts: int,
    tokens: int,
    step: int | None = None,
    *,
    beside: Source | None = None,
) -> tuple[Html, Html]:
    """Heading of a step, and its rollouts as a script element."""
    group_figures = figures(source.forest, looks, source.recorded_advantage)
    groups = choose_groups(group_figures, rollouts, tokens)
    head = (
        masthead(source.title, [*source.facts, *_omissions(group_figures, groups)])
        + _notes(source, looks)
        + key_figures(_key_figures(source, group_figures, looks))
    )
    name = "rollouts" if step is None else f"rollouts-{step}"
    step_data = columns(source, looks, group_figures, groups.tolist())
    if beside is not None:
        step_data["beside"] = beside_columns(source, beside, group_figures, groups.tolist())
        step_data["pictures"] |= step_data["beside"].pop("pictures")
    return head, data(name, step_data)


def _document(title: str, body: Html) -> str:
    script, style = assets()
    return page(title, body, f"'use strict';(()=>{{{script}}})();", style)


def assets() -> tuple[str, str]:
    """Read script and style of the page from the files in `script/`."""
    folder = HERE / "script"
    script = "".join((folder / name).read_text(encoding="utf-8") for name in SCRIPTS)
    return script, (folder / "page.css").read_text(encoding="utf-8")


def _omissions(group_figures: GroupFigures, groups: np.ndarray) -> list[str]:
    if len(groups) == len(group_figures.names):
        return []
    is_shown = np.isin(np.arange(len(group_figures.names)), groups)
    rollouts_text = f"{group_figures.size[is_shown].sum():,} of {group_figures.size.sum():,} rollouts"
    summary = f"{len(groups):,} of {len(group_figures.names):,} groups are shown ({rollouts_text})"
    for name, zero_signal in list(group_figures.zero_signal.items())[:1]:
        zero_signal_count, signal_count = int((zero_signal & ~is_shown).sum()), int((~zero_signal & ~is_shown).sum())
        summary += f"; left out: {zero_signal_count:,} zero-signal under {name}, {signal_count:,} others"
    return [summary]


def _notes(source: Source, looks: Sequence[Outlook]) -> Html:
    html = Html("")
    if source.lacks:
        html += paragraph(Html("<b>Not in the file:</b> "), "; ".join(source.lacks), soft=True)
    for outlook in looks:
        if outlook.missing:
            html += paragraph(Html("<b>{}</b> ").format(outlook.name), f"can't be shown: {outlook.missing}", soft=True)
    notes = list(source.notes)
    notes += [f"{outlook.name}: {note}" for outlook in looks for note in outlook.notes]
    notes += [
        f"{outlook.name}: no {figure}: {reason}" for outlook in looks for figure, reason in outlook.without.items()
    ]
    if notes:
        html += folded("Notes on how it was computed", *map(paragraph, notes))
    return html


def _key_figures(source: Source, group_figures: GroupFigures, looks: Sequence[Outlook]) -> list[tuple[str, str, str]]:
    """Compute the figures under the heading: (name, value, remark)."""
    n = len(group_figures.names)
    forest = source.forest
    scored_rewards = forest.outcome[forest.scored]
    out = [
        ("rollouts", f"{forest.n_trajectories:,}", f"in {n:,} groups"),
        ("tokens", f"{int(forest.path_trainable.sum()):,}", "trained"),
        ("mean reward", f"{float(scored_rewards.mean()):.3f}" if len(scored_rewards) else "none", "of scored rollouts"),
    ]
    for outlook in looks:
        if outlook.name in group_figures.zero_signal:
            zero_signal = group_figures.zero_signal[outlook.name]
            # a group at the step's highest reward has nothing left to learn; one at 0 or less never succeeded
            top_reward = float(np.nanmax(group_figures.high)) if n and not np.isnan(group_figures.high).all() else 0.0
            right = int(
                (
                    zero_signal
                    & (group_figures.spread == 0)
                    & (group_figures.low == top_reward)
                    & (group_figures.low > 0)
                ).sum()
            )
            wrong = int((zero_signal & (group_figures.spread == 0) & (group_figures.high <= 0)).sum())
            parts = {
                "all at the top": right,
                "all at 0 or less": wrong,
                "all equal between": int(zero_signal.sum()) - right - wrong,
            }
            breakdown = ", ".join(f"{count} {kind}" for kind, count in parts.items() if count)
            out.append(
                (
                    f"zero-signal under {outlook.name}",
                    f"{int(zero_signal.sum())} of {n}",
                    breakdown or "groups without an advantage",
                )
            )
    if (count := int((group_figures.residue > 0).sum())) > 0:
        out.append(
            ("residues", str(count), f"equal rewards, recorded advantage up to {group_figures.residue.max():.1e}")
        )
    return out


def _skeleton() -> Html:
    return Html(
        "<noscript><p>This page draws its rollouts by its own script; allow it to run.</p></noscript>\n"
        '<div id="bar" role="toolbar" aria-label="View"></div>\n'
        '<div id="columns">'
        '<div id="groups" role="listbox" tabindex="0" aria-label="Groups"></div>'
        '<article id="group" aria-label="Rollouts of the group"></article>'
        '<aside id="why" tabindex="-1" aria-label="How the number came about"></aside></div>\n'
        '<p id="said" class="unseen" role="status"></p>\n'
        '<dialog id="help" aria-label="Keys"></dialog>\n'
    )


# ---------------------------------------------------------------- data
def as_data(source: Source, looks: Sequence[Outlook]) -> dict[str, Any]:
    """Return `gxpo explain --json`: `methods` (formula, zero-signal groups, missing columns), `groups` with rollouts.

    A rollout's advantage is the mean over its trained tokens, with the smallest and the largest where they differ.
    Unknown values are null.
    """
    forest = source.forest
    group_figures = figures(forest, looks, source.recorded_advantage)
    group_R = forest.ids("group", axis="R").tolist()
    # groups come first, in the order of the file; rollouts are then put into theirs
    groups: list[dict[str, Any]] = [
        {
            "group": name,
            "reward_mean": _number_or_none(group_figures.mean[g]),
            "reward_min": _number_or_none(group_figures.low[g]),
            "reward_max": _number_or_none(group_figures.high[g]),
            "zero_signal": {m: bool(x[g]) for m, x in group_figures.zero_signal.items()},
            "rollouts": [],
        }
        for g, name in enumerate(group_figures.names)
    ]
    advantages_by_method = {x.name: _advantages_of_rollouts(x, source) for x in looks if x.credit is not None}
    lengths = forest.lengths().tolist()
    for r, g in enumerate(group_R):
        groups[g]["rollouts"].append(
            {
                "id": forest.id[r],
                "reward": _number_or_none(float(forest.outcome[r])),
                "success": _number_or_none(float(forest.success[r])),
                "tokens": lengths[r],
                "recorded_advantage": _number_or_none(source.recorded_advantage[r]),
                "advantage": {name: rows[r] for name, rows in advantages_by_method.items()},
            }
        )
    return {
        "title": source.title,
        "facts": source.facts,
        "not_in_the_file": source.lacks,
        "notes": source.notes,
        "methods": [
            {"name": x.name, "formula": x.formula, "settings": x.settings, "missing": x.missing or None,
             "notes": x.notes,
             "zero_signal_groups": None if x.zero_signal is None else float(x.zero_signal.double().mean())}
            for x in looks
        ],
        "groups": groups,
    }  # fmt: skip


def _advantages_of_rollouts(outlook: Outlook, source: Source) -> list[dict[str, float | None]]:
    """Return the mean advantage of each rollout's trained tokens, and their range where they differ."""
    assert outlook.credit is not None
    forest, out = source.forest, []
    for r in range(forest.n_trajectories):
        entries = forest.path_of(r)
        trained_advantages: Tensor = outlook.credit[entries][forest.path_trainable[entries]].to(torch.float64)
        if not len(trained_advantages):
            out.append({"mean": None})
            continue
        low, high = float(trained_advantages.min()), float(trained_advantages.max())
        out.append({"mean": float(trained_advantages.mean())} | ({} if low == high else {"min": low, "max": high}))
    return out


def _number_or_none(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
