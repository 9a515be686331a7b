"""`gxpo compare runs/a runs/b ...`: arms, results over the common budget, and notes, from existing runs."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from gxpo.base.errors import ConfigError, did_you_mean
from gxpo.compare import foreign
from gxpo.compare.caveats import notes_on, notes_on_cut_schedules, refuse_other_tasks
from gxpo.compare.discovery import Group, RunDirectory, distinguishes_arms, find, group_by_arm, keys_that_differ
from gxpo.compare.jobs import Job
from gxpo.compare.reading import figures_of, read_run
from gxpo.compare.results import Arm, Budget, RunResult, Unit
from gxpo.doctor.readers.keys import trainer
from gxpo.training import metrics
from gxpo.training.directory import EVALUATIONS, METRICS

# A run that ended early below this share of the median budget does not shorten the comparison of the others.
STUMP_SHARE = 0.5
Better = Literal["more", "less"]
LESS_IS_BETTER = frozenset(  # words in the names of such figures
    {"length", "turns", "unscored", "truncated", "loss", "malformed", "illegal", "seconds", "gap", "kl", "failures"}
)
_BUDGET_UNITS: dict[str, Unit] = {
    "trainer.max_tokens": "tokens",
    "trainer.max_updates": "updates",
    "trainer.max_seconds": "seconds",
}


class ExistingRuns(NamedTuple):
    """Existing runs, ready to be compared.

    arms     base, the others, controls
    runs     results, cut at the budget
    budget   the largest that every run has spent
    setting  task and model, or the trainers whose logs they are
    notes    caveats for a reader
    measure  gxpo's key, or, with other trainers' logs among the runs, a name of `gxpo.doctor.runlog`
    keys     gxpo: keys stated alike in all arms
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
) -> ExistingRuns:
    """Read existing runs and prepare them for a comparison.

    paths    run directories of gxpo, directories of them, or anything that `gxpo doctor` reads; or LABEL=PATH
    base     label or method of the arm that the others are compared with; None: grpo if there is one, else the first
    labels   path as in `paths` -> its arm
    measure  a figure of gxpo's evaluations or steps, or a name or key of another trainer's; None: held-out accuracy
             if all runs have it, else the reward in training
    better   None: less of lengths, losses, failures and the like, more of all else

    gxpo's runs are grouped into arms by label, by directory if all runs in it have one configuration, or by
    configuration without the seed. Raises `ConfigError` if the runs can't be compared, `RecordError` if a path holds
    no run.
    """
    groups = group_by_arm(find(paths, labels or {}))
    if len(groups) < 2:
        arms_found = f"{groups[0].label}, {len(groups[0].runs)} runs" if groups else "none"
        raise ConfigError(f"nothing to compare: one arm alone ({arms_found}); give runs of another, or LABEL=PATH")
    refuse_other_tasks(groups)
    # The measure first: without two values of it, a run has no curve and says nothing of a common budget.
    figure, notes = _measure(groups, measure)
    whole_results = [(g, run, _result(g, run, figure)) for g in groups for run in g.runs]
    # One point is no curve, and can't be cut at a budget.
    notes += [f"left out: {r.path}: {r.trouble}" for _, _, r in whole_results if len(r.points) < 2]
    whole_results = [(g, run, r) for g, run, r in whole_results if len(r.points) > 1]
    usable_groups = [g for g in groups if any(g is group for group, _, _ in whole_results)]
    if len(usable_groups) < 2:
        raise ConfigError(f"nothing to compare: {'; '.join(notes) or 'no run was measured twice'}")
    # Every curve is read anew, cut at the budget that all have spent: a longer run must not win by its length.
    budget, further_notes = _budget(whole_results)
    notes += further_notes
    runs = [_result(g, run, figure, budget) for g, run, _ in whole_results]
    for i, (_, run, r) in enumerate(whole_results):
        # A run that spent less counts as failed, with the best reason that is known.
        if (amount := r.points[-1].cost(budget.unit)) < budget.amount:
            reason = f"ended after step {r.points[-1].step}, at {amount:,.0f} of {budget}"
            runs[i] = replace(runs[i], trouble=Job(run.path, {}).trouble or r.trouble or reason)
    # Caveats come before `pair_seeds` renumbers seeds: they are about the runs as they were made.
    arms = _arms(usable_groups, base)
    notes += notes_on(usable_groups, runs, figure)
    notes += notes_on_cut_schedules([(run, r, budget) for _, run, r in whole_results])
    runs, further_notes = pair_seeds(runs, [arm.label for arm in arms])
    notes += further_notes
    # Logs of other trainers have no keys of gxpo's, so that nothing is known to be shared.
    keys = {} if any(not g.keys for g in usable_groups) else _shared_keys(usable_groups)
    # The direction is read from the words of the figure's name, as in eval_length.
    direction = better or ("less" if LESS_IS_BETTER & set(re.split(r"[/_]", figure)) else "more")
    return ExistingRuns(
        arms, runs, budget, _setting(usable_groups), list(dict.fromkeys(notes)), figure, keys, direction
    )


# ---------------------------------------------------------------- measure
def _measure(groups: Sequence[Group], requested: str | None) -> tuple[str, list[str]]:
    """Choose the figure to compare; also notes about the choice."""
    runs = [run for g in groups for run in g.runs]
    only_gxpo = all(run.log is None for run in runs)
    # Logs of other trainers name a figure as the doctor does; gxpo's runs alone are compared under gxpo's own key.
    if requested is not None:
        name = requested if only_gxpo else trainer("gxpo").keys.get(requested, requested)
    else:
        # The first default that all runs have, held-out figures first.
        name = next((c for c in foreign.DEFAULT_MEASURES if all(_has(run, c) for run in runs)), None)
        if name is None:
            lacking_run = next(run for run in runs if not _has(run, foreign.DEFAULT_MEASURES[-1]))
            raise ConfigError(
                f"no measure is in all runs: {lacking_run.path} has neither a held-out figure nor a reward that the "
                "others have: name one with --measure"
            )
        name = _own_name(name) if only_gxpo else name
    notes = []
    # A figure of training is measured on the tasks that are trained on, and by chance at each step.
    if not (foreign.held_out(name) or trainer("gxpo").keys.get(name, "").startswith("eval/")):
        reason = ""
        lacking_run = [str(run.path) for run in runs if not any(_has(run, c) for c in foreign.DEFAULT_MEASURES[:2])]
        if requested is None and 0 < len(lacking_run) < len(runs):
            reason = f": {', '.join(lacking_run[:3])} has no held-out figure" if len(lacking_run) == 1 else (
                f": {len(lacking_run)} of {len(runs)} runs have no held-out figure"
            )  # fmt: skip
        notes.append(
            f"{name} is a figure of training, not held-out{reason}; a point is the mean of a tenth of the steps"
        )
    return name, notes


def _has(run: RunDirectory, name: str) -> bool:
    if run.log is not None:
        return foreign.has_curve(run.log, name)
    rows = metrics.read(run.path / (EVALUATIONS if name.startswith("eval/") else METRICS))
    if not rows:  # the run ended at once: it will be left out, so it must not decide the measure
        return name != "eval/reward"
    return _own_name(name) in figures_of(rows[:50])


def _own_name(name: str) -> str:
    """gxpo's own key of a figure named as in `gxpo.doctor.runlog`."""
    return next((k for k, v in trainer("gxpo").keys.items() if v == name), name)


def _result(group: Group, run: RunDirectory, measure: str, budget: Budget | None = None) -> RunResult:
    seed = run.seed or 0
    if run.log is not None:
        return foreign.read_log(run.log, run.path, group.label, seed, measure, budget)
    return read_run(run.path, group.label, seed, _own_name(measure), budget)


# ---------------------------------------------------------------- budget
def _budget(whole_results: Sequence[tuple[Group, RunDirectory, RunResult]]) -> tuple[Budget, list[str]]:
    """The largest budget that all runs have spent, stumps aside; also notes about it."""
    notes: list[str] = []
    unit = _unit([run for _, run, _ in whole_results], notes)
    spent_by_path = {r.path: r.points[-1].cost(unit) for _, _, r in whole_results}
    median_spent = statistics.median(spent_by_path.values())
    # A run that crashed early would cut all others down to its length.
    full_runs = [
        r
        for _, run, r in whole_results
        if not (ended_early(run, r) and spent_by_path[r.path] < STUMP_SHARE * median_spent)
    ]
    amount = min(spent_by_path[r.path] for r in full_runs)
    if amount <= 0:
        raise ConfigError(
            f"{min(spent_by_path, key=lambda p: spent_by_path[p])} has spent no {unit}: compare it over another budget"
        )
    budget = Budget(unit, amount)
    greatest = max(spent_by_path.values())
    if greatest > amount:
        least = min(full_runs, key=lambda r: spent_by_path[r.path])
        notes.append(
            f"compared over {budget}, which all have spent (the least: {least.path}; the most: {greatest:,.0f}): "
            "longer curves are cut there, between two points on the straight line"
        )
    return budget, notes


def _unit(runs: Sequence[RunDirectory], notes: list[str]) -> Unit:
    stated_units = [{u for k, u in _BUDGET_UNITS.items() if run.keys.get(k) is not None} for run in runs]
    # Runs that were limited in one unit are compared in it; otherwise tokens, which measure the work of sampling.
    if all(stated_units) and len(common := set.intersection(*stated_units)) == 1:
        return common.pop()
    # Without tokens in some log all have to be compared by updates.
    runs_without_tokens = [run for run in runs if run.log is not None and foreign.generated_tokens(run.log) is None]
    if runs_without_tokens:
        further_runs = f" and {len(runs_without_tokens) - 1} more" if len(runs_without_tokens) > 1 else ""
        counts = (
            " (num_tokens counts prompts, too)"
            if any(r.log and "num_tokens" in r.log.raw for r in runs_without_tokens)
            else ""
        )
        notes.append(
            f"generated tokens of {runs_without_tokens[0].path}{further_runs} are not in the log{counts}: compared "
            "over equal updates, which in other trainers' logs are steps, and tokens are left at 0"
        )
        return "updates"
    if any(run.log is not None for run in runs):
        notes.append(
            "tokens of other trainers are of the completions that they log: discarded ones may not be among them"
        )
    return "tokens"


def ended_early(run: RunDirectory, result: RunResult) -> bool:
    """Return True if a run of gxpo spent neither its steps nor its budget."""
    steps = run.keys.get("trainer.steps")
    if run.log is not None or not isinstance(steps, int) or not result.points:
        return False
    end = result.points[-1]
    limits = [(run.keys[k], end.cost(u)) for k, u in _BUDGET_UNITS.items() if run.keys.get(k) is not None]
    return end.step < steps and not any(amount >= limit for limit, amount in limits)


# ---------------------------------------------------------------- arms
def pair_seeds(runs: Sequence[RunResult], arms: Sequence[str]) -> tuple[list[RunResult], list[str]]:
    """Renumber seeds so that runs pair with the first arm's: an arm without a common seed takes its seeds in order."""
    seeds = {arm: sorted(r.seed for r in runs if r.arm == arm) for arm in arms}
    first, *other_arms = arms
    notes: list[str] = []
    new_seeds: dict[tuple[str, int], int] = {}
    unpaired_arms: list[str] = []
    for arm in other_arms:
        # Runs of other trainers are often numbered by hand: without a common seed, order is all there is.
        common = set(seeds[arm]) & set(seeds[first])
        if not common:
            free = (n for n in range(len(seeds[arm]) + max(seeds[first]) + 1) if n not in seeds[first])
            seeds_to_take = [*seeds[first], *free][: len(seeds[arm])]
            new_seeds |= {(arm, old): new for old, new in zip(seeds[arm], seeds_to_take, strict=True)}
            unpaired_arms.append(f"{arm} ({', '.join(map(str, seeds[arm][:8]))}{', ...' * (len(seeds[arm]) > 8)})")
        elif set(seeds[arm]) != set(seeds[first]):
            seeds_text = ", ".join(map(str, sorted(common)))
            notes.append(f"{arm} and {first} have other seeds, too; pairs are seeds {seeds_text}")
    if unpaired_arms:
        notes.append(
            f"no seed in common with {first} ({', '.join(map(str, seeds[first][:8]))}): {', '.join(unpaired_arms)}; "
            "runs are paired in order, which takes out nothing of what a seed shares"
        )
    return [replace(r, seed=new_seeds.get((r.arm, r.seed), r.seed)) for r in runs], notes


def _arms(groups: Sequence[Group], base: str | None) -> list[Arm]:
    """The arms, base first and controls last."""
    # A control is the base only where nothing else is there.
    plain = [g for g in groups if not g.shuffled] or list(groups)
    # A run on shuffled rewards has the base's method, too: it is the base only if asked for by its label.
    base_name = base or "grpo"
    base_group = next((g for g in groups if g.label == base_name), None) or next(
        (g for g in plain if g.keys.get("method") == base_name), None
    )
    if base_group is None and base is not None:
        labels = [g.label for g in groups]
        raise ConfigError(f"base {base!r} is no arm{did_you_mean(base, labels)} (there are {', '.join(labels)})")
    base_group = base_group or plain[0]
    other_groups = [g for g in groups if g is not base_group]
    ordered = [base_group, *(g for g in other_groups if not g.shuffled), *(g for g in other_groups if g.shuffled)]
    differ = keys_that_differ([g.keys for g in groups if g.keys])
    return [
        Arm(g.label, _keys(g, differ), "base" if g is base_group else "control" if g.shuffled else "arm")
        for g in ordered
    ]


def _keys(group: Group, differ: Sequence[str]) -> dict[str, Any]:
    run = group.runs[0]
    if run.log is not None:
        return {"trainer": run.log.source, **run.log.config}
    stated_keys = {k: run.keys[k] for k in differ if k in run.stated_keys and k in run.keys}
    return {"method": run.keys["method"], **stated_keys}


def _shared_keys(groups: Sequence[Group]) -> dict[str, Any]:
    """Keys stated by a person with the same value in all arms."""
    differ = keys_that_differ([g.keys for g in groups])
    first = groups[0].runs[0]
    return {
        k: v
        for k, v in first.keys.items()
        if k in first.stated_keys and distinguishes_arms(k) and k not in ("method", *differ)
    }


def _setting(groups: Sequence[Group]) -> str:
    gxpo_keys = next((g.keys for g in groups if g.keys), None)
    sources = sorted({run.log.source for g in groups for run in g.runs if run.log is not None})
    gxpo_settings = [f"{gxpo_keys['task']}, {gxpo_keys['model']}"] if gxpo_keys is not None else []
    return "; ".join([*gxpo_settings, *([f"logs of {', '.join(sources)}"] if sources else [])])
