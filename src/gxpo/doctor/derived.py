"""Series that others give: shares written in percent, groups without a signal, curves of the completions."""

from __future__ import annotations

import numpy as np

from gxpo.doctor.runlog import RunLog
from gxpo.doctor.series import Series

# Series that are shares, and the largest value from which on one is in percent.
SHARES = (
    *("success", "truncated", "clip_fraction", "zero_signal", "zero_right", "zero_wrong", "repetition"),
    *("tool_failures", "malformed", "eval/accuracy"),
)
MOST_OF_SHARE = 5.0
LEAST_ROLLOUTS = 2  # of a step, for a curve of the completions


def complete(log: RunLog) -> None:
    """Scale shares, set verdicts aside that nobody gave, and add the share of groups without a signal."""
    _scale_percents(log)
    _drop_density_entropies(log)
    _drop_empty_verdicts(log)
    _add_zero_signal(log)


def _scale_percents(log: RunLog) -> None:
    """Divide shares by 100 that are written in percent, with a note."""
    for name in SHARES:
        series = log.series.get(name)
        if series is None or not MOST_OF_SHARE < log.largest(name) <= 100 or float(log.values(name).min()) < 0:
            continue
        log.notes.append(f"{series.key} is up to {log.largest(name):.3g}: read as percent")
        log.series[name] = Series(series.steps, series.values / 100, series.key)


def _drop_density_entropies(log: RunLog) -> None:
    """Set entropies below 0 aside: they are of densities, as a flow's, where a small one says nothing of variety."""
    for name in [n for n in log.series if "entropy" in n and log.has(n) and float(log.values(n).min()) < -1e-3]:
        series = log.series.pop(name)
        log.notes.append(f"{series.key} is below 0: not of tokens, and not read")
        log.raw[series.key] = series


def _add_zero_signal(log: RunLog) -> None:
    """Add the share of groups without a signal as that of all-right plus that of all-wrong ones, for rewards of 0 and
    1: a graded one, whose mean is not the share of right answers, may differ within groups that count as wrong."""
    right, wrong, success = (log.column(name) for name in ("zero_right", "zero_wrong", "success"))
    if log.has("zero_signal") or not len(right) or len(right) != len(wrong):
        return
    reward = log.values("reward")
    if len(success) and (len(success) != len(reward) or float(np.abs(success.values - reward).max()) > 1e-3):
        return
    silent = np.minimum(right.values + wrong.values, 1.0)
    log.series["zero_signal"] = Series(right.steps, silent, f"{right.key} + {wrong.key}")


def _drop_empty_verdicts(log: RunLog) -> None:
    """Set verdicts aside that are all 0 because nobody gave any: then no group is counted as all wrong, either."""
    if not (log.is_zero("success") and log.is_zero("zero_wrong")) or log.is_constant("reward"):
        return
    log.notes.append(f"{log.key('success')} and {log.key('zero_wrong')} are 0 in all steps: not taken for verdicts")
    for name in ("success", "zero_wrong", "zero_right"):
        if log.is_zero(name):
            series = log.series.pop(name)
            log.raw[series.key] = series


def add_curves(log: RunLog) -> None:
    """Add curves of reward, its components, success, length and cut answers from the completions, where no file has
    reward or success.

    A run that has saved no metrics yet may have its completions: TRL saves the former every 500 steps.
    """
    rollouts = log.training_rollouts
    if rollouts is None or "reward" in log.series or "success" in log.series:
        return
    columns = {"reward": "score", "success": "success", "length": "tokens", "truncated": "truncated"}
    curves = {name: (getattr(rollouts, column), column) for name, column in columns.items()}
    if len(rollouts.components) > 1:
        curves |= {f"component/{name}": (values, name) for name, values in rollouts.components.items()}
    if not np.isfinite(rollouts.tokens).any():
        curves["length"] = np.array([len(text) for text in rollouts.completion], dtype=float), "number of characters"
    for name, (values, column) in curves.items():
        usable = np.isfinite(values) & (rollouts.step >= 0)
        if name in log.series or not usable.any():
            continue
        steps, place, counts = np.unique(rollouts.step[usable], return_inverse=True, return_counts=True)
        means = np.bincount(place, weights=values[usable]) / counts
        is_curve = counts >= LEAST_ROLLOUTS
        log.series[name] = Series(steps[is_curve].astype(float), means[is_curve], f"mean {column} of the completions")
