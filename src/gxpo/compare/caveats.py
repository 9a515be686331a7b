"""Caveats of comparing existing runs: errors for those that can't be compared, notes on those that can."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gxpo.base.errors import ConfigError
from gxpo.compare import foreign
from gxpo.compare.discovery import Group, RunDirectory, format_value, keys_that_differ
from gxpo.compare.results import Budget, RunResult

SAME_TASK_KEYS = ("model", "task")
SAME_EVALUATION_KEYS = ("eval.tasks", "eval.samples", "eval.temperature")
# Prefixes of keys that change the held-out tasks or how they are answered, not only training.
_EVALUATION_PREFIXES = ("tasks.options", "chat.", "env.", "sampling.max_new_tokens", "sampling.stop", "learner.dtype")


def refuse_other_tasks(groups: Sequence[Group]) -> None:
    """Raise `ConfigError` for runs of different tasks or models, or that were evaluated in different ways."""
    gxpo_runs = [run for g in groups for run in g.runs if run.log is None]
    for key in (*SAME_TASK_KEYS, *SAME_EVALUATION_KEYS):
        run_by_value = {repr(run.keys.get(key)): run for run in gxpo_runs}
        if len(run_by_value) > 1:
            first, second = list(run_by_value.values())[:2]
            raise ConfigError(
                f"these runs can't be compared: {key} is {format_value(first.keys.get(key))} in {first.path} and "
                f"{format_value(second.keys.get(key))} in {second.path}; compare those that agree"
            )


def notes_on(groups: Sequence[Group], runs: Sequence[RunResult], measure: str) -> list[str]:
    """Notes for a reader, one fact a line. `ConfigError` if runs were evaluated on different held-out tasks."""
    refuse_other_verdicts(runs)
    return [
        *_seeds(groups, runs),
        *_late_first_points(runs, measure),
        *_configurations([g for g in groups if g.keys]),
        *_different_starts(groups),
        *_versions([run for g in groups for run in g.runs if run.keys]),
        *_foreign_logs(groups, measure),
    ]


def refuse_other_verdicts(runs: Sequence[RunResult]) -> None:
    """Raise `ConfigError` if verdicts are of different held-out tasks."""
    tables = [r for r in runs if r.after]
    for run in tables[1:]:
        if run.after.keys() != tables[0].after.keys():
            common = len(run.after.keys() & tables[0].after.keys())
            raise ConfigError(
                f"these runs can't be compared: {tables[0].path} was evaluated on {len(tables[0].after)} held-out "
                f"tasks and {run.path} on {len(run.after)}, {common} of them the same"
            )


def _seeds(groups: Sequence[Group], runs: Sequence[RunResult]) -> list[str]:
    seeds = {g.label: sorted(r.seed for r in runs if r.arm == g.label) for g in groups}
    notes = []
    # With a single seed the only repetition is over held-out tasks.
    if all(len(s) == 1 for s in seeds.values()):
        by_task = all(r.after for r in runs)
        notes.append(
            "one seed each: the interval covers held-out tasks only, not what another seed would give"
            if by_task
            else "one seed each, and no verdicts by held-out task: there is nothing to make an interval of"
        )
    if any(run.log is not None and foreign.seed_of(run.path) is None for g in groups for run in g.runs):
        notes.append(
            "seeds are not in all of the other trainers' logs: runs are numbered in the order given, and pairs share "
            "nothing"
        )
    return notes


def _late_first_points(runs: Sequence[RunResult], measure: str) -> list[str]:
    late = [r for r in runs if r.points[0].step > 0]
    further_runs = f" and {len(late) - 1} more" if len(late) > 1 else ""
    opening = f"the first {measure} of {late[0].path}{further_runs} is of step {late[0].points[0].step}" if late else ""
    return [f"{opening}: what was gained before is not seen"] if late else []


def _configurations(groups: Sequence[Group]) -> list[str]:
    """Notes on stated keys in which arms differ besides the method."""
    differing_by_arm = [k for k in keys_that_differ([g.keys for g in groups]) if k not in ("method", "scoring.shuffle")]
    # A difference counts only where a person has stated the key: defaults of two versions may differ by themselves.
    differing_by_arm = [k for k in differing_by_arm if any(k in g.runs[0].stated_keys for g in groups)]
    # A difference of the evaluation makes figures incomparable, one of the training only confounds them.
    evaluation_keys = [k for k in differing_by_arm if k.startswith(_EVALUATION_PREFIXES)]
    training_keys = [k for k in differing_by_arm if k not in evaluation_keys]
    notes = []
    if training_keys and len({g.keys["method"] for g in groups}) > 1:
        values_text = "; ".join(
            f"{k}: {_by_arm(groups, lambda g, k=k: format_value(g.keys.get(k)))}" for k in training_keys
        )
        notes.append(f"a difference need not be the method's, they differ in more: {values_text}")
    notes += [
        f"not evaluated alike: {k} is {_by_arm(groups, lambda g, k=k: format_value(g.keys.get(k)))}"
        for k in evaluation_keys
    ]
    for group in groups:
        differing_keys = keys_that_differ([run.keys for run in group.runs])
        if differing_keys:
            notes.append(f"runs of {group.label} differ in {', '.join(differing_keys)}")
    return notes


def _different_starts(groups: Sequence[Group]) -> list[str]:
    """Note on pairs that began with different parameters."""
    init_by_seed: dict[int | None, dict[str, str]] = {}
    for group in groups:
        for run in group.runs:
            if run.keys:
                init_by_seed.setdefault(run.seed, {})[group.label] = format_value(run.keys.get("init_from"))
    differing_seeds = [seed for seed, init_by_arm in init_by_seed.items() if len(set(init_by_arm.values())) > 1]
    seeds_text = ", ".join(map(str, differing_seeds))
    return (
        [f"pairs did not begin alike: init_from differs between the arms at seed {seeds_text}"]
        if differing_seeds
        else []
    )


def notes_on_cut_schedules(runs: Sequence[tuple[RunDirectory, RunResult, Budget]]) -> list[str]:
    """Note on runs cut before their learning-rate schedule ended; `runs`: a run, its whole result, the budget."""
    cut_runs = []
    for run, result, budget in runs:
        schedule = run.keys.get("optim.schedule") if run.log is None else run.log.config.get("schedule")
        has_schedule = schedule is not None and not str(schedule).startswith("constant")
        if has_schedule and result.points[-1].cost(budget.unit) > 1.1 * budget.amount:
            cut_runs.append(f"{result.path} ({schedule})")
    further_runs = f" and {len(cut_runs) - 3} more" if len(cut_runs) > 3 else ""
    return (
        [f"cut while the learning rate was still to fall: {', '.join(cut_runs[:3])}{further_runs}"] if cut_runs else []
    )


def _versions(runs: Sequence[RunDirectory]) -> list[str]:
    version_tables = [run.keys["versions"] for run in runs if isinstance(run.keys.get("versions"), Mapping)]
    notes = []
    for name in dict.fromkeys(k for versions in version_tables for k in versions):
        values = sorted({str(versions.get(name, "unknown")) for versions in version_tables})
        if len(values) > 1:
            notes.append(f"made with different versions of {name}: {', '.join(values)}")
    return notes


def _foreign_logs(groups: Sequence[Group], measure: str) -> list[str]:
    """Notes on differences between other trainers' logs, and between them and gxpo's runs."""
    foreign_groups = [g for g in groups if g.runs[0].log is not None]
    if not foreign_groups:
        return []
    notes = []
    # Logs of one trainer are at least measured by the same code.
    if len({_source(g) for g in groups}) > 1:
        notes.append(
            f"measured by different trainers, each in its own way: {_by_arm(groups, _source)}; tasks and models are "
            "not in all of these logs"
        )
    else:
        notes.append("whether tasks, model and evaluation are the same is not in these logs: the caller has to know")
    if len({_source(g) for g in foreign_groups}) == 1 and len({_measured_as(g, measure) for g in foreign_groups}) > 1:
        notes.append(f"not the same figure: {_by_arm(foreign_groups, lambda g: _measured_as(g, measure))}")
    # A reward is a sum of components: with others of them the same name means another quantity.
    if measure == "reward" and len(set(map(_reward_components, foreign_groups))) > 1:
        notes.append(f"rewards are not the same: {_by_arm(foreign_groups, _reward_components)}")
    # Within an arm, then between arms. The number of steps is no difference: curves are cut at a common budget.
    for group in foreign_groups:
        logs = [run.log.config for run in group.runs if run.log is not None]
        differing_keys = [
            k for k in dict.fromkeys(k for c in logs for k in c) if len({repr(c[k]) for c in logs if k in c}) > 1
        ]
        if differing_keys:
            notes.append(f"runs of {group.label} differ in {', '.join(differing_keys)}")
    settings: list[Mapping[str, Any]] = [g.runs[0].log.config for g in foreign_groups if g.runs[0].log is not None]
    for key in dict.fromkeys(k for s in settings for k in s):
        values_seen = {repr(s[key]) for s in settings if key in s and key != "max_steps"}
        if len(values_seen) > 1:
            pairs = zip((g.label for g in foreign_groups), settings, strict=True)
            values = ", ".join(f"{format_value(s[key])} ({label})" for label, s in pairs if key in s)
            notes.append(f"{key} differs: {values}")
    return notes


def _source(group: Group) -> str:
    log = group.runs[0].log
    return "gxpo" if log is None else log.source


def _reward_components(group: Group) -> str:
    log = group.runs[0].log
    return (" + ".join(sorted(log.components())) if log is not None else "") or "unknown"


def _measured_as(group: Group, measure: str) -> str:
    log = group.runs[0].log
    figure = None if log is None else foreign.figure_of(log, measure)
    return "" if figure is None else re.sub(r"^val-(core|aux)/", "val/", figure[2])  # one is printed under either


def _by_arm(groups: Sequence[Group], value: Callable[[Group], str]) -> str:
    """Format a value by arm: `VALUE (ARM, ARM), VALUE (ARM)`."""
    labels_by_value: dict[str, list[str]] = {}
    for group in groups:
        labels_by_value.setdefault(value(group), []).append(group.label)
    return ", ".join(f"{v} ({', '.join(labels)})" for v, labels in labels_by_value.items())
