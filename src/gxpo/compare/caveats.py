"""What keeps runs that exist from being compared, and what a reader has to know of those that are."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gxpo.base.errors import ConfigError
from gxpo.compare import foreign
from gxpo.compare.found import Found, Group, differing, said
from gxpo.compare.results import Budget, RunResult

SAME = ("model", "task")
EVALUATED = ("eval.tasks", "eval.samples", "eval.temperature")
# What changes the held-out tasks or how they are answered, beside training.
_ANSWERED = ("tasks.options", "chat.", "env.", "sampling.max_new_tokens", "sampling.stop", "learner.dtype")


def refuse_other_tasks(groups: Sequence[Group]) -> None:
    """`ConfigError` where runs were trained on different tasks or models, or evaluated in different ways."""
    own = [run for g in groups for run in g.runs if run.log is None]
    for key in (*SAME, *EVALUATED):
        values = {repr(run.keys.get(key)): run for run in own}
        if len(values) > 1:
            one, other = list(values.values())[:2]
            raise ConfigError(
                f"these runs can't be compared: {key} is {said(one.keys.get(key))} in {one.path} and "
                f"{said(other.keys.get(key))} in {other.path}; compare those that agree"
            )


def notes_on(groups: Sequence[Group], runs: Sequence[RunResult], measure: str) -> list[str]:
    """What a reader has to know, a line each. `ConfigError` where held-out tasks are not the same."""
    refuse_other_verdicts(runs)
    return [
        *_seeds(groups, runs),
        *_beginnings(runs, measure),
        *_configurations([g for g in groups if g.keys]),
        *_starts(groups),
        *_versions([run for g in groups for run in g.runs if run.keys]),
        *_logs(groups, measure),
    ]


def refuse_other_verdicts(runs: Sequence[RunResult]) -> None:
    """`ConfigError` where verdicts are of different held-out tasks."""
    tables = [r for r in runs if r.after]
    for other in tables[1:]:
        if other.after.keys() != tables[0].after.keys():
            common = len(other.after.keys() & tables[0].after.keys())
            raise ConfigError(
                f"these runs can't be compared: {tables[0].path} was evaluated on {len(tables[0].after)} held-out "
                f"tasks and {other.path} on {len(other.after)}, {common} of them the same"
            )


def _seeds(groups: Sequence[Group], runs: Sequence[RunResult]) -> list[str]:
    seeds = {g.label: sorted(r.seed for r in runs if r.arm == g.label) for g in groups}
    notes = []
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


def _beginnings(runs: Sequence[RunResult], measure: str) -> list[str]:
    late = [r for r in runs if r.points[0].step > 0]
    more = f" and {len(late) - 1} more" if len(late) > 1 else ""
    said_of = f"the first {measure} of {late[0].path}{more} is of step {late[0].points[0].step}" if late else ""
    return [f"{said_of}: what was gained before is not seen"] if late else []


def _configurations(groups: Sequence[Group]) -> list[str]:
    """Keys that somebody stated, and that differ beside the method."""
    differ = [k for k in differing([g.keys for g in groups]) if k not in ("method", "scoring.shuffle")]
    differ = [k for k in differ if any(k in g.runs[0].stated for g in groups)]
    answered = [k for k in differ if k.startswith(_ANSWERED)]
    beside = [k for k in differ if k not in answered]
    notes = []
    if beside and len({g.keys["method"] for g in groups}) > 1:
        listed = "; ".join(f"{k}: {_by_arm(groups, lambda g, k=k: said(g.keys.get(k)))}" for k in beside)
        notes.append(f"a difference need not be the method's, they differ in more: {listed}")
    notes += [f"not evaluated alike: {k} is {_by_arm(groups, lambda g, k=k: said(g.keys.get(k)))}" for k in answered]
    for group in groups:
        inside = differing([run.keys for run in group.runs])
        if inside:
            notes.append(f"runs of {group.label} differ in {', '.join(inside)}")
    return notes


def _starts(groups: Sequence[Group]) -> list[str]:
    """Pairs that began with other parameters."""
    starts: dict[int | None, dict[str, str]] = {}
    for group in groups:
        for run in group.runs:
            if run.keys:
                starts.setdefault(run.seed, {})[group.label] = said(run.keys.get("init_from"))
    apart = [seed for seed, found in starts.items() if len(set(found.values())) > 1]
    listed = ", ".join(map(str, apart))
    return [f"pairs did not begin alike: init_from differs between the arms at seed {listed}"] if apart else []


def on_schedules(runs: Sequence[tuple[Found, RunResult, Budget]]) -> list[str]:
    """Runs that are cut while their learning rate had still to fall; a run, its whole result, the budget."""
    cut = []
    for run, result, budget in runs:
        schedule = run.keys.get("optim.schedule") if run.log is None else run.log.config.get("schedule")
        fell = schedule is not None and not str(schedule).startswith("constant")
        if fell and result.points[-1].spent(budget.unit) > 1.1 * budget.amount:
            cut.append(f"{result.path} ({schedule})")
    more = f" and {len(cut) - 3} more" if len(cut) > 3 else ""
    return [f"cut while the learning rate was still to fall: {', '.join(cut[:3])}{more}"] if cut else []


def _versions(runs: Sequence[Found]) -> list[str]:
    held = [run.keys["versions"] for run in runs if isinstance(run.keys.get("versions"), Mapping)]
    notes = []
    for name in dict.fromkeys(k for versions in held for k in versions):
        values = sorted({str(versions.get(name, "unknown")) for versions in held})
        if len(values) > 1:
            notes.append(f"made with different versions of {name}: {', '.join(values)}")
    return notes


def _logs(groups: Sequence[Group], measure: str) -> list[str]:
    """What differs between logs of other trainers, and between them and gxpo's."""
    other = [g for g in groups if g.runs[0].log is not None]
    if not other:
        return []
    notes = []
    if len({_source(g) for g in groups}) > 1:
        notes.append(
            f"measured by different trainers, each in its own way: {_by_arm(groups, _source)}; tasks and models are "
            "not in all of these logs"
        )
    else:
        notes.append("whether tasks, model and evaluation are the same is not in these logs: the caller has to know")
    if len({_source(g) for g in other}) == 1 and len({_measured_as(g, measure) for g in other}) > 1:
        notes.append(f"not the same figure: {_by_arm(other, lambda g: _measured_as(g, measure))}")
    if measure == "reward" and len(set(map(_rewards, other))) > 1:
        notes.append(f"rewards are not the same: {_by_arm(other, _rewards)}")
    for group in other:
        logs = [run.log.config for run in group.runs if run.log is not None]
        inside = [k for k in dict.fromkeys(k for c in logs for k in c) if len({repr(c[k]) for c in logs if k in c}) > 1]
        if inside:
            notes.append(f"runs of {group.label} differ in {', '.join(inside)}")
    settings: list[Mapping[str, Any]] = [g.runs[0].log.config for g in other if g.runs[0].log is not None]
    for key in dict.fromkeys(k for s in settings for k in s):
        known = {repr(s[key]) for s in settings if key in s and key != "max_steps"}
        if len(known) > 1:
            pairs = zip((g.label for g in other), settings, strict=True)
            values = ", ".join(f"{said(s[key])} ({label})" for label, s in pairs if key in s)
            notes.append(f"{key} differs: {values}")
    return notes


def _source(group: Group) -> str:
    log = group.runs[0].log
    return "gxpo" if log is None else log.source


def _rewards(group: Group) -> str:
    log = group.runs[0].log
    return (" + ".join(sorted(log.components())) if log is not None else "") or "unknown"


def _measured_as(group: Group, measure: str) -> str:
    log = group.runs[0].log
    found = None if log is None else foreign.figure_of(log, measure)
    return "" if found is None else re.sub(r"^val-(core|aux)/", "val/", found[2])  # one is printed under either


def _by_arm(groups: Sequence[Group], value: Callable[[Group], str]) -> str:
    """`VALUE (ARM, ARM), VALUE (ARM)`."""
    held: dict[str, list[str]] = {}
    for group in groups:
        held.setdefault(value(group), []).append(group.label)
    return ", ".join(f"{v} ({', '.join(labels)})" for v, labels in held.items())
