"""A comparison as runs: settings and arms to configurations, what they will cost, and training all of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from gxpo.base.errors import ConfigError, did_you_mean
from gxpo.compare import suites
from gxpo.compare.arms import folder, stated
from gxpo.compare.jobs import STOPPED, Job, Runner
from gxpo.compare.reading import read_run
from gxpo.compare.results import Arm, Budget, RunResult, Unit
from gxpo.compare.store import job_keys
from gxpo.compare.suites import Setting
from gxpo.compare.worker import JOB
from gxpo.parts.options import dotted
from gxpo.training import config
from gxpo.training.preflight import rehearse

FOREVER = 1_000_000  # steps: the budget ends a run
POINTS = 6  # evaluations during a run, after equal shares of its budget
TUNING = 1000  # first seed of the runs that choose a key's value; they are never reported
KEYS = {
    "trainer.steps": FOREVER,
    "trainer.checkpoint_every": 10,
    "trainer.keep_checkpoints": 1,
    "eval.every": 0,
    "eval.points": POINTS,
    "doctor.every": 0,
}
OF_A_RUN = ("method", "seed", "out", "trainer.steps", "eval.every")  # keys of a file that a comparison states itself
UNITS: Mapping[str, Unit] = {
    "": "tokens",
    "tokens": "tokens",
    "s": "seconds",
    "seconds": "seconds",
    "updates": "updates",
}
Notify = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """What is to be run on one setting.

    seeds         of the reported runs
    tuning        key -> values to try for each arm; empty: none
    tuning_seeds  runs of each value
    threads       of each run
    """

    setting: Setting
    arms: Sequence[Arm]
    seeds: Sequence[int]
    out: Path
    tuning: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    tuning_seeds: int = 2
    threads: int = 1

    def job(self, arm: Arm, seed: int) -> Job:
        """A reported run: OUT/ARM/seed-N."""
        return Job(self.out / folder(arm.label) / f"seed-{seed}", run_keys(self.setting, arm, seed))

    def jobs(self, arms: Sequence[Arm] | None = None) -> list[Job]:
        """All reported runs, seed by seed, so that what is there at any time has all arms."""
        return [self.job(arm, seed) for seed in self.seeds for arm in (self.arms if arms is None else arms)]

    def candidates(self, arm: Arm) -> list[Mapping[str, Any]]:
        """The values to try: every combination of `tuning`."""
        return [dict(zip(self.tuning, values, strict=True)) for values in product(*self.tuning.values())]

    def tuning_jobs(self, arm: Arm, tried: Mapping[str, Any]) -> list[Job]:
        """The runs of an arm at some values: OUT/tuning/ARM/KEY=VALUE/seed-N."""
        place = self.out / "tuning" / folder(arm.label) / folder(",".join(f"{k}={v}" for k, v in tried.items()))
        with_values = replace(arm, keys={**arm.keys, **tried})
        seeds = range(TUNING, TUNING + self.tuning_seeds)
        return [Job(place / f"seed-{s}", run_keys(self.setting, with_values, s), keep=False) for s in seeds]


def make_setting(
    task: str,
    *,
    model: str | None = None,
    sets: Sequence[str] = (),
    budget: Budget | None = None,
    measure: str | None = None,
    better: str | None = None,
) -> Setting:
    """What is trained on.

    task    a setting of the suites (`sums`), a YAML file of keys, or a task's name, for which the suites' setting of
            that task and model is taken where there is one
    sets    `KEY=VALUE` over it, for all arms
    budget  over the setting's own

    Raises `ConfigError` for an unknown task, and where neither says a budget.
    """
    named = suites.settings()
    if task.endswith((".yaml", ".yml")):
        own = {k: s.value for k, s in config.read(task).items() if k not in OF_A_RUN}
        found: Setting | None = None
        name, keys = Path(task).stem, own
    else:
        match = [s for s in named.values() if s.keys.get("task") == task and model in (None, s.keys.get("model"))]
        found = named.get(task) or min(match, key=lambda s: len(s.keys), default=None)  # the plainest
        name, keys = (found.name, dict(found.keys)) if found else (task, {"model": "tiny", "task": task})
    if found is None and budget is None:
        hint = did_you_mean(task, named)
        raise ConfigError(f"--task {task} has no budget of its own{hint}: give one, --budget 60000 (generated tokens)")
    over = {**stated(keys, task), **({"model": stated({"m": model}, "--model")["m"]} if model else {})}
    merged = config.over(config.over({}, dotted(over)), config.parse_set(list(sets)))
    base = found or Setting(name=name, keys={"task": task}, budget=budget or Budget("tokens", 1))
    changes = {"keys": {k: s.value for k, s in merged.items()}, "budget": budget or base.budget}
    changes |= {k: v for k, v in (("measure", measure), ("better", better)) if v is not None}
    return base.model_copy(update=changes)


def parse_budget(text: str) -> Budget:
    """`60000`, `60k`, `2M` (generated tokens), `90s`, `10min`, `2h`, `200updates`.

    >>> parse_budget("60k"), parse_budget("10min")
    (Budget(unit='tokens', amount=60000.0), Budget(unit='seconds', amount=600.0))
    """
    said = text.strip().replace("_", "").replace(",", "")
    digits = said.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ")
    word = said[len(digits) :].strip()
    factors = {"k": ("tokens", 1e3), "M": ("tokens", 1e6), "min": ("seconds", 60.0), "h": ("seconds", 3600.0)}
    try:
        unit, factor = factors.get(word) or (UNITS[word], 1.0)
        amount = float(digits) * factor
    except (KeyError, ValueError):
        amount, unit = 0.0, "tokens"
    if not amount > 0:
        raise ConfigError(f"--budget {text}: write tokens (60000, 60k, 2M), time (90s, 10min, 2h) or 200updates")
    return Budget(UNITS[str(unit)], amount)


def run_keys(setting: Setting, arm: Arm, seed: int) -> dict[str, Any]:
    """All keys of a run: the defaults of comparisons, the setting's, the arm's, its budget and seed."""
    limit = {f"trainer.max_{setting.budget.unit}": _whole(setting.budget.amount)}
    below = config.over({}, dotted(stated({**KEYS, **setting.keys}, f"setting {setting.name}")))
    given = config.over(below, dotted(stated(arm.keys, f"arm {arm.label}")))
    return {**{k: s.value for k, s in given.items()}, **limit, "seed": seed}


def _whole(x: float) -> float | int:
    return int(x) if x == int(x) else x


def check(plan: Plan) -> None:
    """Refuse before anything runs what can't run: unknown keys, methods that the task can't serve, directories that
    hold other runs."""
    for arm in plan.arms:
        for tried in plan.candidates(arm):
            keys = run_keys(plan.setting, replace(arm, keys={**arm.keys, **tried}), plan.seeds[0])
            resolved = config.resolve(stated(keys, f"arm {arm.label}"))
            rehearse(resolved)
    tuning = [job for arm in plan.arms for tried in plan.candidates(arm) for job in plan.tuning_jobs(arm, tried)]
    for job in tuning if plan.tuning else plan.jobs():
        refuse_other(job)


def refuse_other(job: Job) -> None:
    """`ConfigError` where the directory was made with other keys."""
    made = job.path / JOB
    if not made.is_file():
        return
    recorded_keys, requested_keys = json.loads(made.read_text()), json.loads(json.dumps(job_keys(job.keys)))
    if recorded_keys.get("first_step") != requested_keys.get("first_step"):
        raise ConfigError(
            f"{job.path} was made with tasks in another order, without the first tasks.per_step of them in its first "
            "epoch: give another --out"
        )
    for key in sorted({*recorded_keys, *requested_keys}):
        if recorded_keys.get(key) != requested_keys.get(key):
            raise ConfigError(
                f"{job.path} was made with {key}={recorded_keys.get(key)}, not {requested_keys.get(key)}: "
                "give another --out"
            )


def tune(plan: Plan, runner: Runner, notify: Notify) -> dict[str, dict[str, Any]]:
    """Arm -> the values with the best mean end over the tuning seeds. A control takes those of the base."""
    if not plan.tuning:
        return {}
    arms = [arm for arm in plan.arms if arm.kind != "control"]
    jobs = [job for arm in arms for tried in plan.candidates(arm) for job in plan.tuning_jobs(arm, tried)]
    notify(f"tuning {', '.join(plan.tuning)}: {len(jobs)} runs on seeds of their own, which are not reported")
    for _ in watched(runner, jobs, notify, plan.setting.measure):
        pass
    chosen: dict[str, dict[str, Any]] = {}
    sign = 1.0 if plan.setting.better == "more" else -1.0
    for arm in arms:
        means = []
        for tried in plan.candidates(arm):
            ends = [_end(job, plan.setting.measure) for job in plan.tuning_jobs(arm, tried)]
            if ends and all(e is not None for e in ends):
                means.append((sign * fmean([e for e in ends if e is not None]), tried))
        if means:
            chosen[arm.label] = dict(max(means, key=lambda pair: pair[0])[1])
            notify(f"  {arm.label}: {', '.join(f'{k}={v}' for k, v in chosen[arm.label].items())}")
    base = next(arm.label for arm in plan.arms if arm.kind == "base")
    chosen |= {arm.label: chosen[base] for arm in plan.arms if arm.kind == "control" and base in chosen}
    return chosen


def _end(job: Job, measure: str) -> float | None:
    """The measure at the end of a run; None where the run is not done or failed."""
    if not job.done or job.trouble:
        return None
    found = read_run(job.path, "", 0, measure)
    return found.end if found.points else None


def tuned_plan(plan: Plan, chosen: Mapping[str, Mapping[str, Any]]) -> Plan:
    """The plan with each arm at its own values."""
    arms = [replace(arm, keys={**arm.keys, **chosen.get(arm.label, {})}) for arm in plan.arms]
    return replace(plan, arms=arms, tuning={})


def watched(runner: Runner, jobs: Sequence[Job], notify: Notify, measure: str) -> Iterator[Job]:
    """Run the jobs; a line for each as it ends."""
    new = sum(not job.done for job in jobs)
    there = len(jobs) - new
    if there:
        notify(f"{there} of {len(jobs)} runs are there already")
    for job, trouble in runner(jobs):
        if new and not trouble.startswith(STOPPED):
            there = sum(j.done for j in jobs)
            end = _end(job, measure)
            said = trouble or (f"{measure.removeprefix('eval_')} {end:.3f}" if end is not None else "no evaluation")
            notify(f"  {there}/{len(jobs)}  {name_of(job)}: {said}")
        elif trouble.startswith(STOPPED):
            notify(f"  {name_of(job)}: {trouble}")
        yield job


def name_of(job: Job) -> str:
    """`ARM seed-N`, of a tuning run `ARM KEY=VALUE seed-N`."""
    folders = job.path.parts
    return " ".join(folders[folders.index("tuning") + 1 :] if "tuning" in folders else folders[-2:])


def collect(plan: Plan) -> list[RunResult]:
    """The runs that are done."""
    found = []
    for arm in plan.arms:
        for seed in plan.seeds:
            job = plan.job(arm, seed)
            if not job.done:
                continue
            result = read_run(job.path, arm.label, seed, plan.setting.measure)
            found.append(replace(result, trouble=job.trouble or result.trouble))
    return found


def with_horizons(plan: Plan, costs: Mapping[str, Mapping[str, Any]]) -> Plan:
    """The plan with the number of steps stated for arms that read it: a schedule of the learning rate, or a part whose
    coefficient follows the run's progress. Others go on until the budget is spent.

    costs  arm -> figures of its probe
    """
    arms = []
    for arm in plan.arms:
        resolved = config.resolve(stated(run_keys(plan.setting, arm, plan.seeds[0]), f"arm {arm.label}"))
        own = "trainer.steps" in arm.keys or "trainer.steps" in plan.setting.keys
        if not own and arm.label in costs and reads_progress(resolved):
            arm = replace(arm, keys={**arm.keys, "trainer.steps": int(costs[arm.label]["steps"])})
        arms.append(arm)
    return replace(plan, arms=arms)


def reads_progress(resolved: config.Resolved) -> bool:
    """Whether anything depends on how many steps the run has."""
    each = resolved.phases or (resolved,)
    parts = (part for one in each for part in one.method.parts())
    open_ended = any(number.schedule.over is None for one in each for number in one.method.scheduled)
    by_run = open_ended or any(one.settings.optim.schedule != "constant" for one in each)
    return by_run or any(hasattr(part, "total_steps") for part in parts)
