"""`gxpo compare runs/a runs/b ...`: runs that exist -> arms, results over the budget that all have spent, and notes."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from gxpo.base.errors import ConfigError, did_you_mean
from gxpo.compare import foreign
from gxpo.compare.caveats import notes_on, on_schedules, refuse_other_tasks
from gxpo.compare.found import Found, Group, differing, find, grouped, tells
from gxpo.compare.jobs import Job
from gxpo.compare.reading import figures_of, read_run
from gxpo.compare.results import Arm, Budget, RunResult, Unit
from gxpo.doctor.readers.key_tables import GXPO
from gxpo.training import metrics
from gxpo.training.directory import EVALUATIONS, METRICS

STUMP = 0.5  # a run that ended early with less than this share of the others' budget does not cut theirs
Better = Literal["more", "less"]
LESS = frozenset(  # words of figures of which less is better
    {"length", "turns", "unscored", "truncated", "loss", "malformed", "illegal", "seconds", "gap", "kl", "failures"}
)
_BUDGETS: dict[str, Unit] = {
    "trainer.max_tokens": "tokens",
    "trainer.max_updates": "updates",
    "trainer.max_seconds": "seconds",
}


class Existing(NamedTuple):
    """What was found.

    arms     base, the others, controls
    runs     results, cut at the budget
    budget   the largest that every run has spent
    setting  task and model, or whose logs they are
    notes    what a reader has to know of it
    measure  gxpo's key, or, with other trainers' logs among them, a name of `gxpo.doctor.runlog`
    keys     gxpo: what somebody stated for all arms alike
    better   whether more or less of the measure is better
    """

    arms: list[Arm]
    runs: list[RunResult]
    budget: Budget
    setting: str
    notes: list[str]
    measure: str
    keys: Mapping[str, Any]
    better: Better


def read_existing(
    paths: Sequence[str | Path],
    *,
    base: str | None = None,
    labels: Mapping[str, str] | None = None,
    measure: str | None = None,
    better: Better | None = None,
) -> Existing:
    """Arms and results of runs that exist.

    paths    run directories of gxpo, directories of them, or anything that `gxpo doctor` reads; or LABEL=PATH
    base     label or method of the arm that the others are compared with; None: grpo where there is one, else the first
    labels   path as in `paths` -> its arm
    measure  a figure of gxpo's evaluations or steps, or a name or key of another trainer's; None: held-out accuracy
             where all have it, else the reward in training
    better   None: less of lengths, losses, failures and the like, more of all else

    gxpo's runs are arms by their configuration without the seed, by their directory where all in it have one
    configuration, or by label. Raises `ConfigError` where the runs can't be compared, `RecordError` where a path holds
    none.
    """
    groups = grouped(find(paths, labels or {}))
    if len(groups) < 2:
        there = f"{groups[0].label}, {len(groups[0].runs)} runs" if groups else "none"
        raise ConfigError(f"nothing to compare: one arm alone ({there}); give runs of another, or LABEL=PATH")
    refuse_other_tasks(groups)
    chosen, notes = _measure(groups, measure)
    full = [(g, run, _result(g, run, chosen)) for g in groups for run in g.runs]
    notes += [f"left out: {r.path}: {r.trouble}" for _, _, r in full if len(r.points) < 2]
    full = [(g, run, r) for g, run, r in full if len(r.points) > 1]
    kept = [g for g in groups if any(g is one for one, _, _ in full)]
    if len(kept) < 2:
        raise ConfigError(f"nothing to compare: {'; '.join(notes) or 'no run was measured twice'}")
    budget, more = _budget(full)
    notes += more
    runs = [_result(g, run, chosen, budget) for g, run, _ in full]
    for i, (_, run, r) in enumerate(full):
        if (spent := r.points[-1].spent(budget.unit)) < budget.amount:
            ended = f"ended after step {r.points[-1].step}, at {spent:,.0f} of {budget}"
            runs[i] = replace(runs[i], trouble=Job(run.path, {}).trouble or r.trouble or ended)
    arms = _arms(kept, base)
    notes += notes_on(kept, runs, chosen)
    notes += on_schedules([(run, r, budget) for _, run, r in full])
    runs, more = paired(runs, [arm.label for arm in arms])
    notes += more
    keys = {} if any(not g.keys for g in kept) else _shared(kept)
    towards = better or ("less" if LESS & set(re.split(r"[/_]", chosen)) else "more")
    return Existing(arms, runs, budget, _setting(kept), list(dict.fromkeys(notes)), chosen, keys, towards)


# ---------------------------------------------------------------- measure
def _measure(groups: Sequence[Group], asked: str | None) -> tuple[str, list[str]]:
    """The figure compared, and what is to be said of it."""
    runs = [run for g in groups for run in g.runs]
    own = all(run.log is None for run in runs)
    if asked is not None:
        name = asked if own else GXPO.get(asked, asked)
    else:
        name = next((c for c in foreign.CHOICES if all(_has(run, c) for run in runs)), None)
        if name is None:
            lacking = next(run for run in runs if not _has(run, foreign.CHOICES[-1]))
            raise ConfigError(
                f"no measure is in all runs: {lacking.path} has neither a held-out figure nor a reward that the others "
                "have: name one with --measure"
            )
        name = _own_name(name) if own else name
    notes = []
    if not (foreign.held_out(name) or GXPO.get(name, "").startswith("eval/")):
        why = ""
        lacking = [str(run.path) for run in runs if not any(_has(run, c) for c in foreign.CHOICES[:2])]
        if asked is None and 0 < len(lacking) < len(runs):
            why = f": {', '.join(lacking[:3])} has no held-out figure" if len(lacking) == 1 else (
                f": {len(lacking)} of {len(runs)} runs have no held-out figure"
            )  # fmt: skip
        notes.append(f"{name} is a figure of training, not held-out{why}; a point is the mean of a tenth of the steps")
    return name, notes


def _has(run: Found, name: str) -> bool:
    if run.log is not None:
        return foreign.has(run.log, name)
    rows = metrics.read(run.path / (EVALUATIONS if name.startswith("eval/") else METRICS))
    if not rows:  # ended at once: it will be left out, and decides nothing
        return name != "eval/reward"
    return _own_name(name) in figures_of(rows[:50])


def _own_name(name: str) -> str:
    """gxpo's key of a figure with a name of `gxpo.doctor.runlog`."""
    return next((k for k, v in GXPO.items() if v == name), name)


def _result(group: Group, run: Found, measure: str, budget: Budget | None = None) -> RunResult:
    seed = run.seed or 0
    if run.log is not None:
        return foreign.read_log(run.log, run.path, group.label, seed, measure, budget)
    return read_run(run.path, group.label, seed, _own_name(measure), budget)


# ---------------------------------------------------------------- budget
def _budget(full: Sequence[tuple[Group, Found, RunResult]]) -> tuple[Budget, list[str]]:
    """The largest budget that all runs have spent, but for stumps, and how it was found."""
    notes: list[str] = []
    unit = _unit([run for _, run, _ in full], notes)
    spent = {r.path: r.points[-1].spent(unit) for _, _, r in full}
    middle = statistics.median(spent.values())
    counted = [r for _, run, r in full if not (unfinished(run, r) and spent[r.path] < STUMP * middle)]
    amount = min(spent[r.path] for r in counted)
    if amount <= 0:
        raise ConfigError(f"{min(spent, key=lambda p: spent[p])} has spent no {unit}: compare it over another budget")
    budget = Budget(unit, amount)
    most = max(spent.values())
    if most > amount:
        least = min(counted, key=lambda r: spent[r.path])
        notes.append(
            f"compared over {budget}, which all have spent (the least: {least.path}; the most: {most:,.0f}): longer "
            "curves are cut there, between two points on the straight line"
        )
    return budget, notes


def _unit(runs: Sequence[Found], notes: list[str]) -> Unit:
    stated = [{u for k, u in _BUDGETS.items() if run.keys.get(k) is not None} for run in runs]
    if all(stated) and len(common := set.intersection(*stated)) == 1:
        return common.pop()
    unknown = [run for run in runs if run.log is not None and foreign.generated(run.log) is None]
    if unknown:
        others = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        counts = (
            " (num_tokens counts prompts, too)" if any(r.log and "num_tokens" in r.log.raw for r in unknown) else ""
        )
        notes.append(
            f"generated tokens of {unknown[0].path}{others} are not in the log{counts}: compared over equal "
            "updates, which in other trainers' logs are steps, and tokens are left at 0"
        )
        return "updates"
    if any(run.log is not None for run in runs):
        notes.append(
            "tokens of other trainers are of the completions that they log: discarded ones may not be among them"
        )
    return "tokens"


def unfinished(run: Found, result: RunResult) -> bool:
    """Whether a run of gxpo ended before its configuration says."""
    steps = run.keys.get("trainer.steps")
    if run.log is not None or not isinstance(steps, int) or not result.points:
        return False
    end = result.points[-1]
    limits = [(run.keys[k], end.spent(u)) for k, u in _BUDGETS.items() if run.keys.get(k) is not None]
    return end.step < steps and not any(spent >= limit for limit, spent in limits)


# ---------------------------------------------------------------- arms
def paired(runs: Sequence[RunResult], arms: Sequence[str]) -> tuple[list[RunResult], list[str]]:
    """Runs whose seeds make pairs with the first arm's; an arm that shares none with it takes its seeds in order."""
    seeds = {arm: sorted(r.seed for r in runs if r.arm == arm) for arm in arms}
    first, *others = arms
    notes: list[str] = []
    renamed: dict[tuple[str, int], int] = {}
    apart: list[str] = []
    for arm in others:
        common = set(seeds[arm]) & set(seeds[first])
        if not common:
            free = (n for n in range(len(seeds[arm]) + max(seeds[first]) + 1) if n not in seeds[first])
            news = [*seeds[first], *free][: len(seeds[arm])]
            renamed |= {(arm, old): new for old, new in zip(seeds[arm], news, strict=True)}
            apart.append(f"{arm} ({', '.join(map(str, seeds[arm][:8]))}{', ...' * (len(seeds[arm]) > 8)})")
        elif set(seeds[arm]) != set(seeds[first]):
            listed = ", ".join(map(str, sorted(common)))
            notes.append(f"{arm} and {first} have other seeds, too; pairs are seeds {listed}")
    if apart:
        notes.append(
            f"no seed in common with {first} ({', '.join(map(str, seeds[first][:8]))}): {', '.join(apart)}; runs are "
            "paired in order, which takes out nothing of what a seed shares"
        )
    return [replace(r, seed=renamed.get((r.arm, r.seed), r.seed)) for r in runs], notes


def _arms(groups: Sequence[Group], base: str | None) -> list[Arm]:
    """The base first, controls last."""
    plain = [g for g in groups if not g.shuffled] or list(groups)
    wanted = base or "grpo"
    first = next((g for g in groups if g.label == wanted), None) or next(
        (g for g in plain if g.keys.get("method") == wanted), None
    )
    if first is None and base is not None:
        listed = [g.label for g in groups]
        raise ConfigError(f"base {base!r} is no arm{did_you_mean(base, listed)} (there are {', '.join(listed)})")
    first = first or plain[0]
    rest = [g for g in groups if g is not first]
    ordered = [first, *(g for g in rest if not g.shuffled), *(g for g in rest if g.shuffled)]
    differ = differing([g.keys for g in groups if g.keys])
    return [
        Arm(g.label, _keys(g, differ), "base" if g is first else "control" if g.shuffled else "arm") for g in ordered
    ]


def _keys(group: Group, differ: Sequence[str]) -> dict[str, Any]:
    run = group.runs[0]
    if run.log is not None:
        return {"trainer": run.log.source, **run.log.config}
    stated = {k: run.keys[k] for k in differ if k in run.stated and k in run.keys}
    return {"method": run.keys["method"], **stated}


def _shared(groups: Sequence[Group]) -> dict[str, Any]:
    """What somebody stated for all arms alike."""
    differ = differing([g.keys for g in groups])
    first = groups[0].runs[0]
    return {k: v for k, v in first.keys.items() if k in first.stated and tells(k) and k not in ("method", *differ)}


def _setting(groups: Sequence[Group]) -> str:
    own = next((g.keys for g in groups if g.keys), None)
    sources = sorted({run.log.source for g in groups for run in g.runs if run.log is not None})
    named = [f"{own['task']}, {own['model']}"] if own is not None else []
    return "; ".join([*named, *([f"logs of {', '.join(sources)}"] if sources else [])])
