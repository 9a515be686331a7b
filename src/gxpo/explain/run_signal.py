"""`gxpo signal --run`: advantages of several methods recomputed on a run's own rollouts, without training.

For each method: groups with a signal, agreement with the run's own method (sign, direction, size), and signal and size
for each kind of group that the doctor names.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

import gxpo
from gxpo.doctor.rollouts import Rollouts
from gxpo.explain.group_figures import figures
from gxpo.explain.outlook import Outlook
from gxpo.explain.rollout_page import looks_of
from gxpo.explain.rollout_source import Source, from_rows, read, steps_of
from gxpo.forest import grouped
from gxpo.forest.forest import Forest

Floats = NDArray[np.float64]
S = TypeVar("S")
RECOMPUTED = ("ngrpo", "psr_nsr", "reinforce_pp")  # methods that may give a signal to groups of equal rewards
EQUAL = ("all_right", "all_wrong", "equal")  # kinds of such groups
MOST_STEPS = 8  # steps of a run that are recomputed, evenly through it
ASSUMED = "grpo"  # base where the run's own method is not known
AGREES = 0.95  # share of recorded advantages whose sign an assumed base must have
# Each group is of one of these kinds; names that the doctor has are its ids.
KINDS = {
    "all_right": "equal rewards, all right",
    "all_wrong": "equal rewards, all wrong",
    "equal": "equal rewards, neither by verdict nor at an end of the scale",
    "mixed": "rewards differ",
    "alone": "fewer than two scored rollouts",
}
# And of any number of these.
MARKS = {
    "truncation": "groups with a rollout that was cut",
    "no_diversity": "groups of one text throughout",
    "missing_scores": "groups with a rollout that has no score",
}


@dataclass(frozen=True)
class MethodSignal:
    """One method on the rollouts; figures are None where it can't be applied (`missing` says why) or there is nothing.

    with_signal  groups in which some token has an advantage
    same_sign    share of the same sign among rollouts that have an advantage under base and method (`both`)
    only_base, only_method   rollouts that have an advantage under one of the two
    size         root mean square of the advantage of a scored rollout (mean of its trained tokens)
    relative     size over that of the base
    cosine       of the two advantages over all scored rollouts: 1 is a mere change of scale, as of a learning rate
    by_kind      kind of group -> (groups, with a signal, size)
    """

    method: str
    missing: str = ""
    notes: tuple[str, ...] = ()
    with_signal: int | None = None
    signal: float | None = None
    same_sign: float | None = None
    both: int | None = None
    only_base: int | None = None
    only_method: int | None = None
    size: float | None = None
    relative: float | None = None
    cosine: float | None = None
    by_kind: Mapping[str, tuple[int, int, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class RunSignal:
    """Signal of methods on a run's rollouts; the first row is the base.

    is_own  the base is the run's own method with its settings; else it is `ASSUMED`
    groups  kind or mark -> number of groups
    """

    path: str
    base: str
    is_own: bool
    steps: tuple[int | None, ...]
    rollouts: int
    n_groups: int
    groups: Mapping[str, int]
    rows: tuple[MethodSignal, ...]
    notes: tuple[str, ...]


@dataclass
class _Step:
    """Columns of one step: of groups [G], of scored rollouts [R], and of each method."""

    low: Floats
    high: Floats
    verdict: Floats
    size: NDArray[np.int64]
    marks: dict[str, NDArray[np.bool_]]
    group: NDArray[np.int64]
    recorded_advantage: Floats
    has_signal: dict[str, NDArray[np.bool_]]
    advantage: dict[str, Floats]


def signal_of_run(path: Path, methods: Sequence[str], step: int | None = None) -> RunSignal:
    """Recompute the advantages of methods on the rollouts of a run, as `gxpo explain` reads it.

    methods  names, besides the run's own; ConfigError for an unknown one, before anything is read
    step     only this step; None: up to `MOST_STEPS`, evenly through the run, the first and the last among them
    """
    for name in methods:
        gxpo.method(name)
    path = Path(path)
    steps = [step] if step is not None else _spread(steps_of(path))
    # Step by step, since a method sees the batch of a step: some normalise over it.
    tables: list[_Step] = []
    looks: list[list[Outlook]] = []
    notes: dict[str, None] = {}
    base, is_own = ASSUMED, False
    for step_number in steps:
        source = read(path, step_number)
        if not tables:
            is_own = source.method is not None
            base = ASSUMED if source.method is None else source.method.name
        step_looks = looks_of(source, {name: {"method": name} for name in (base, *methods)})
        tables.append(_columns(source, step_looks))
        looks.append(step_looks)
        notes |= dict.fromkeys(_notes(source))
    if not is_own:
        notes[f"the run's own method is not known: the base is {base} with its defaults"] = None
    # Over all steps: kinds of groups first, since ends of the scale are those of the whole sample.
    kinds = _kinds(tables)
    rows = [_row(i, looks, tables, kinds, base) for i in range(len(looks[0]))]
    notes |= dict.fromkeys(_recorded_note(tables, base, is_own))
    groups = {name: int(mask.sum()) for name, mask in kinds.items()}
    rollouts = sum(len(t.group) for t in tables)
    n_groups = sum(len(t.size) for t in tables)
    if groups["alone"] > n_groups / 2:
        notes["most groups have fewer than two scored rollouts: nothing to compare within a group"] = None
    return RunSignal(str(path), base, is_own, tuple(steps), rollouts, n_groups, groups, tuple(rows), tuple(notes))


def signal_in_equal_groups(rollouts: Rollouts, methods: Sequence[str] = RECOMPUTED) -> dict[str, tuple[int, int]]:
    """Count the groups of equal rewards in which a method gives some answer an advantage, for `gxpo.doctor.diagnose`.

    Returns method -> (count, all groups of equal rewards), without methods that need what the rollouts lack.
    """
    rows = rollouts.select(np.isfinite(rollouts.score) & (rollouts.group >= 0))
    steps = _spread(np.unique(rows.step).tolist())
    sources = [from_rows(rows.select(rows.step == step), "", []) for step in steps]
    looks = [looks_of(source, {name: {"method": name} for name in methods}) for source in sources]
    tables = [_columns(source, of_step) for source, of_step in zip(sources, looks, strict=True)]
    if not tables:
        return {}
    kinds = _kinds(tables)
    method_rows = [_row(i, looks, tables, kinds, "") for i in range(len(methods))]
    n_equal = sum(int(kinds[kind].sum()) for kind in EQUAL)
    return {
        row.method: (sum(row.by_kind[kind][1] for kind in EQUAL if kind in row.by_kind), n_equal)
        for row in method_rows
        if n_equal and not row.missing
    }


def _spread(steps: Sequence[S]) -> list[S]:
    places = np.linspace(0, len(steps) - 1, min(MOST_STEPS, len(steps))).round().astype(int)
    return [steps[i] for i in places]


def _notes(source: Source) -> list[str]:
    """Return what the rollouts lack and their reader remarks, and that steps were not told apart."""
    step_ranges = [f for f in source.facts if f.startswith("steps ")]
    return [
        *(f"not in the file: {x}" for x in source.lacks),
        *source.notes,
        *(f"one file of {f}: a method that normalises over a batch sees them as one" for f in step_ranges),
    ]


def _columns(source: Source, looks: Sequence[Outlook]) -> _Step:
    """Reduce one step to its columns."""
    forest = source.forest
    group_figures = figures(forest, looks, source.recorded_advantage)
    group_R = forest.ids("group", axis="R")
    n = len(group_figures.names)
    is_scored = forest.scored
    success = torch.where(is_scored, forest.success, torch.nan).numpy()
    # All right 1, all wrong 0, both nan or some unknown: nan.
    verdict = np.full(n, math.nan)
    for value in (0.0, 1.0):
        differs = np.bincount(group_R[is_scored].numpy(), success[is_scored.numpy()] != value, minlength=n) > 0
        verdict[~differs] = value
    missing = np.bincount(group_R.numpy(), (~is_scored).numpy(), minlength=n) > 0
    cut = np.bincount(group_R.numpy(), forest.truncated.numpy(), minlength=n) > 0
    return _Step(
        group_figures.low,
        group_figures.high,
        verdict,
        np.bincount(group_R[is_scored].numpy(), minlength=n),
        {"truncation": cut, "no_diversity": _one_text(forest, group_R, n), "missing_scores": missing},
        group_R[is_scored].numpy(),
        source.recorded_advantage[is_scored.numpy()],
        {x.name: ~x.zero_signal.numpy() for x in looks if x.zero_signal is not None},
        {x.name: _mean_advantage(x, forest)[is_scored.numpy()] for x in looks if x.credit is not None},
    )


def _one_text(forest: Forest, group_R: torch.Tensor, n: int) -> NDArray[np.bool_]:
    """[G] groups of several rollouts whose tokens are all the same."""
    texts: list[set[bytes]] = [set() for _ in range(n)]
    for r, g in enumerate(group_R.tolist()):
        texts[g].add(forest.token[forest.path_token[forest.path_of(r)]].numpy().tobytes())
    size = np.bincount(group_R.numpy(), minlength=n)
    return np.array([len(x) == 1 for x in texts], dtype=bool) & (size > 1)


def _mean_advantage(outlook: Outlook, forest: Forest) -> Floats:
    """[R] mean advantage of a rollout's trained tokens; 0 where it has none."""
    assert outlook.credit is not None
    trained_P = forest.path_trainable.numpy()
    trajectory_P = forest.path_trajectory.numpy()
    total = np.bincount(trajectory_P, outlook.credit.numpy() * trained_P, minlength=forest.n_trajectories)
    return total / np.maximum(np.bincount(trajectory_P, trained_P, minlength=forest.n_trajectories), 1)


def _kinds(tables: Sequence[_Step]) -> dict[str, NDArray[np.bool_]]:
    """Kind or mark -> [groups of all steps]."""
    columns = ("low", "high", "verdict", "size")
    low, high, verdict, size = (np.concatenate([getattr(t, c) for t in tables]) for c in columns)
    is_known = np.isfinite(low)
    lowest, highest = (low[is_known].min(), high[is_known].max()) if is_known.any() else (math.nan, math.nan)
    is_compared = is_known & (size > 1)
    is_equal = is_compared & (high - low <= grouped.DEGENERATE * np.maximum(abs(high), abs(low)))
    # Without verdicts as the doctor does it: wrong scores least, at 0 or below; right scores most, above that.
    has_verdict = np.isfinite(verdict)
    is_wrong = np.where(has_verdict, verdict == 0, (high <= lowest) & (lowest <= 0))
    is_right = np.where(has_verdict, verdict == 1, (low >= highest) & (highest > max(lowest, 0)))
    return {
        "all_right": is_equal & is_right,
        "all_wrong": is_equal & is_wrong,
        "equal": is_equal & ~is_right & ~is_wrong,
        "mixed": is_compared & ~is_equal,
        "alone": ~is_compared,
        **{name: np.concatenate([t.marks[name] for t in tables]) for name in MARKS},
    }


def _row(
    i: int,
    looks: Sequence[Sequence[Outlook]],
    tables: Sequence[_Step],
    kinds: Mapping[str, NDArray[np.bool_]],
    base: str,
) -> MethodSignal:
    """Figures of one method over all steps."""
    name = looks[0][i].name
    missing = next((x[i].missing for x in looks if x[i].missing), "")
    notes = tuple(dict.fromkeys(note for x in looks for note in x[i].notes))
    if missing:
        return MethodSignal(name, missing, notes)
    has_signal = np.concatenate([t.has_signal[name] for t in tables])
    advantage = np.concatenate([t.advantage[name] for t in tables])
    # Groups of all steps in one numbering, for the sizes by kind.
    begin = np.cumsum([0, *(len(t.size) for t in tables)])
    group = np.concatenate([t.group + b for t, b in zip(tables, begin, strict=False)])
    by_kind = {
        k: (int(m.sum()), int((m & has_signal).sum()), _rms(advantage[m[group]])) for k, m in kinds.items() if m.any()
    }
    figures = {"with_signal": int(has_signal.sum()), "signal": float(has_signal.mean()), "size": _rms(advantage)}
    # Without the base's advantages there is nothing to agree with.
    if not all(base in t.advantage for t in tables):
        return MethodSignal(name, "", notes, **figures, by_kind=by_kind)
    base_advantage = np.concatenate([t.advantage[base] for t in tables])
    is_in_both = (advantage != 0) & (base_advantage != 0)
    norms = _rms(advantage) * _rms(base_advantage) * len(advantage)
    return MethodSignal(
        name,
        "",
        notes,
        **figures,
        both=int(is_in_both.sum()),
        same_sign=float((np.sign(advantage) == np.sign(base_advantage))[is_in_both].mean())
        if is_in_both.any()
        else None,
        only_base=int(((base_advantage != 0) & (advantage == 0)).sum()),
        only_method=int(((base_advantage == 0) & (advantage != 0)).sum()),
        relative=_rms(advantage) / _rms(base_advantage) if _rms(base_advantage) > 0 else None,
        cosine=float(advantage @ base_advantage) / norms if norms > 0 else None,
        by_kind=by_kind,
    )


def _rms(x: Floats) -> float:
    return float(np.sqrt(np.mean(x**2))) if len(x) else 0.0


def _recorded_note(tables: Sequence[_Step], base: str, is_own: bool) -> list[str]:
    """Compare the recorded advantages, where there are any, with the base's."""
    if not all(base in t.advantage for t in tables):
        return []
    recorded_advantage, base_advantage = (
        np.concatenate(x) for x in zip(*((t.recorded_advantage, t.advantage[base]) for t in tables), strict=True)
    )
    is_in_both = np.isfinite(recorded_advantage) & (recorded_advantage != 0) & (base_advantage != 0)
    if not is_in_both.any():
        return []
    n_same = int((np.sign(recorded_advantage) == np.sign(base_advantage))[is_in_both].sum())
    note = f"recorded advantages have the sign of {base}'s in {n_same} of {int(is_in_both.sum())} rollouts"
    if n_same / is_in_both.sum() < AGREES:
        alternative = "" if is_own else "the run's own method is another, or "
        note += f": {alternative}its advantages point the wrong way (gxpo doctor); no figure here is of its training"
    return [note]


def as_data(signal: RunSignal) -> dict[str, Any]:
    """Return `gxpo signal --run --json`; unknown values are null."""
    rows = []
    for row in signal.rows:
        figures_by_kind = {k: {"groups": n, "with_signal": s, "size": size} for k, (n, s, size) in row.by_kind.items()}
        figures = {k: v for k, v in vars(row).items() if k not in ("by_kind", "notes")}
        rows.append({**figures, "missing": row.missing or None, "of": figures_by_kind, "notes": list(row.notes)})
    return {
        "run": signal.path,
        "base": signal.base,
        "base_is_own": signal.is_own,
        "steps": list(signal.steps),
        "rollouts": signal.rollouts,
        "groups": signal.n_groups,
        "kinds": dict(signal.groups),
        "methods": rows,
        "notes": list(signal.notes),
    }


def show(signal: RunSignal) -> None:
    """Print a row for each method, groups with a signal by kind, and what was not known."""
    from rich.table import Table

    from gxpo.base import terminal

    # up to thirteen columns; narrower, rich would cut them off
    console = terminal.console(width=max(160, terminal.console().width))
    steps = [str(s) for s in signal.steps if s is not None]
    steps_text = f", steps {', '.join(steps)}" if steps else ""
    console.print(
        f"{signal.path}: {signal.rollouts} scored rollouts in {signal.n_groups} groups{steps_text}", soft_wrap=True
    )
    text_by_kind = {k: text for k, text in {**KINDS, **MARKS}.items() if signal.groups[k]}
    table = Table(box=None, header_style="bold")
    for name in ("method", "with a signal", "same sign", "cosine", "size", "x base", *text_by_kind):
        table.add_column(name, justify="left" if name == "method" else "right", no_wrap=True)
    for row in signal.rows:
        if row.missing:
            continue
        label = f"{row.method} (base)" if row is signal.rows[0] else row.method
        table.add_row(
            label,
            f"{row.with_signal} ({row.signal:.0%})",
            "-" if row.same_sign is None else f"{row.same_sign:.0%}",
            "-" if row.cosine is None else f"{row.cosine:.2f}",
            f"{row.size:.3g}",
            "-" if row.relative is None else f"{row.relative:.2f}",
            *(f"{row.by_kind[k][1]} of {row.by_kind[k][0]}" for k in text_by_kind),
        )
    console.print(table)
    for row in signal.rows:
        if row.missing:
            console.print(f"{row.method}: not computed: {row.missing}", soft_wrap=True)
    for k, text in text_by_kind.items():
        console.print(f"{k}: {text}", soft_wrap=True)
    for note in (*signal.notes, *(f"{row.method}: {n}" for row in signal.rows for n in row.notes)):
        console.print(note, soft_wrap=True)
    console.print(
        "A signal in more groups is not a gain: docs/remedies.md has what helped in training, and no change of method "
        "is among it.",
        soft_wrap=True,
    )
