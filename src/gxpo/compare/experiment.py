"""Runs of a comparison: build configurations from settings and arms, check them, tune, train and collect."""

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
from gxpo.compare.arms import folder, with_origin
from gxpo.compare.jobs import STOPPED, Job, Runner
from gxpo.compare.reading import read_run
from gxpo.compare.results import Arm, Budget, RunResult, Unit
from gxpo.compare.suites import Setting
from gxpo.compare.worker import JOB, job_keys
from gxpo.parts.options import flatten_keys
from gxpo.training import config
from gxpo.training.preflight import rehearse

FOREVER = 1_000_000  # steps: the budget ends a run before
POINTS = 6  # evaluations during a run, after equal shares of its budget
TUNING_SEED = 1000  # first seed of the runs that choose a key's value; never reported
KEYS = {
    "trainer.steps": FOREVER,
    "trainer.checkpoint_every": 10,
    "trainer.keep_checkpoints": 1,
    "eval.every": 0,
    "eval.points": POINTS,
    "doctor.every": 0,
}
RUN_ONLY_KEYS = (
    "method",
    "seed",
    "out",
    "trainer.steps",
    "eval.every",
)  # keys of a file that a comparison states itself
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
    """The runs of a comparison on one setting.

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
        """Job of a reported run, in OUT/ARM/seed-N."""
        return Job(self.out / folder(arm.label) / f"seed-{seed}", run_keys(self.setting, arm, seed))

    def jobs(self, arms: Sequence[Arm] | None = None) -> list[Job]:
        """Jobs of all reported runs, seed by seed, so that a comparison that was cut short has every arm."""
        return [self.job(arm, seed) for seed in self.seeds for arm in (self.arms if arms is None else arms)]

    def candidates(self, arm: Arm) -> list[Mapping[str, Any]]:
        """Every combination of the `tuning` values."""
        return [dict(zip(self.tuning, values, strict=True)) for values in product(*self.tuning.values())]

    def tuning_jobs(self, arm: Arm, values: Mapping[str, Any]) -> list[Job]:
        """Jobs that try an arm at some values, in OUT/tuning/ARM/KEY=VALUE/seed-N."""
        directory = self.out / "tuning" / folder(arm.label) / folder(",".join(f"{k}={v}" for k, v in values.items()))
        with_values = replace(arm, keys={**arm.keys, **values})
        seeds = range(TUNING_SEED, TUNING_SEED + self.tuning_seeds)
        return [Job(directory / f"seed-{s}", run_keys(self.setting, with_values, s), keep=False) for s in seeds]


def make_setting(
    task: str,
    *,
    model: str | None = None,
    sets: Sequence[str] = (),
    budget: Budget | None = None,
    measure: str | None = None,
    better: str | None = None,
) -> Setting:
    """Build the setting of a task from the command line.

    task    a setting of the suites (`sums`), a YAML file of keys, or a task's name, for which the suites' setting of
            that task and model is taken where there is one
    sets    `KEY=VALUE` over it, for all arms
    budget  over the setting's own

    Raises `ConfigError` for an unknown task, and if neither the setting nor `budget` limits the runs.
    """
    suite_settings = suites.settings()
    if task.endswith((".yaml", ".yml")):
        # Keys of a run alone (its directory, its seed) are not those of a setting.
        file_keys = {k: s.value for k, s in config.read(task).items() if k not in RUN_ONLY_KEYS}
        suite_setting: Setting | None = None
        name, keys = Path(task).stem, file_keys
    else:
        matches = [
            s for s in suite_settings.values() if s.keys.get("task") == task and model in (None, s.keys.get("model"))
        ]
        # Of several settings of a task, the one with the fewest keys: the others study some change of it.
        suite_setting = suite_settings.get(task) or min(matches, key=lambda s: len(s.keys), default=None)
        if suite_setting:
            name, keys = suite_setting.name, dict(suite_setting.keys)
        else:
            name, keys = task, {"model": "tiny", "task": task}
    if suite_setting is None and budget is None:
        hint = did_you_mean(task, suite_settings)
        raise ConfigError(f"--task {task} has no budget of its own{hint}: give one, --budget 60000 (generated tokens)")
    # A base setting, known or empty, is copied with the changed keys, so that its measure and direction carry over.
    overrides = {**with_origin(keys, task), **({"model": with_origin({"m": model}, "--model")["m"]} if model else {})}
    stated_by_key = config.over(config.over({}, flatten_keys(overrides)), config.parse_set(list(sets)))
    base = suite_setting or Setting(name=name, keys={"task": task}, budget=budget or Budget("tokens", 1))
    changes = {"keys": {k: s.value for k, s in stated_by_key.items()}, "budget": budget or base.budget}
    changes |= {k: v for k, v in (("measure", measure), ("better", better)) if v is not None}
    return base.model_copy(update=changes)


def parse_budget(text: str) -> Budget:
    """Parse a budget: `60000`, `60k`, `2M` (generated tokens), `90s`, `10min`, `2h` or `200updates`.

    >>> parse_budget("60k"), parse_budget("10min")
    (Budget(unit='tokens', amount=60000.0), Budget(unit='seconds', amount=600.0))
    """
    compact = text.strip().replace("_", "").replace(",", "")
    digits = compact.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ")
    word = compact[len(digits) :].strip()
    # Without a unit, and with k or M, a budget is in tokens, as most are.
    factors = {"k": ("tokens", 1e3), "M": ("tokens", 1e6), "min": ("seconds", 60.0), "h": ("seconds", 3600.0)}
    try:
        unit, factor = factors.get(word) or (UNITS[word], 1.0)
        amount = float(digits) * factor
    # An unknown unit and a malformed number get the same message, with examples.
    except (KeyError, ValueError):
        amount, unit = 0.0, "tokens"
    if not amount > 0:
        raise ConfigError(f"--budget {text}: write tokens (60000, 60k, 2M), time (90s, 10min, 2h) or 200updates")
    return Budget(UNITS[str(unit)], amount)


def run_keys(setting: Setting, arm: Arm, seed: int) -> dict[str, Any]:
    """All keys of a run: defaults of comparisons, over them the setting's and the arm's, then budget and seed."""
    limit = {f"trainer.max_{setting.budget.unit}": _as_int_if_integral(setting.budget.amount)}
    setting_keys = config.over({}, flatten_keys(with_origin({**KEYS, **setting.keys}, f"setting {setting.name}")))
    resolved = config.over(setting_keys, flatten_keys(with_origin(arm.keys, f"arm {arm.label}")))
    return {**{k: s.value for k, s in resolved.items()}, **limit, "seed": seed}


def _as_int_if_integral(x: float) -> float | int:
    return int(x) if x == int(x) else x


def check(plan: Plan) -> None:
    """Raise `ConfigError` before anything runs for an unknown key, a method that the task can't serve, or a directory
    with other runs."""
    for arm in plan.arms:
        for values in plan.candidates(arm):
            keys = run_keys(plan.setting, replace(arm, keys={**arm.keys, **values}), plan.seeds[0])
            resolved = config.resolve(with_origin(keys, f"arm {arm.label}"))
            rehearse(resolved)
    tuning = [job for arm in plan.arms for values in plan.candidates(arm) for job in plan.tuning_jobs(arm, values)]
    for job in tuning if plan.tuning else plan.jobs():
        refuse_other(job)


def refuse_other(job: Job) -> None:
    """Raise `ConfigError` if the job's directory was made with other keys."""
    job_file = job.path / JOB
    if not job_file.is_file():
        return
    # The request goes through JSON as well: a tuple comes out of the file as a list.
    recorded_keys, requested_keys = json.loads(job_file.read_text()), json.loads(json.dumps(job_keys(job.keys)))
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
    """Choose each arm's values: those with the best mean end over the tuning seeds. A control takes the base's."""
    if not plan.tuning:
        return {}
    # The control is not tuned: it is the base on other rewards, with the base's values.
    arms = [arm for arm in plan.arms if arm.kind != "control"]
    jobs = [job for arm in arms for values in plan.candidates(arm) for job in plan.tuning_jobs(arm, values)]
    notify(f"tuning {', '.join(plan.tuning)}: {len(jobs)} runs on seeds of their own, which are not reported")
    for _ in run_jobs(runner, jobs, notify, plan.setting.measure):
        pass
    tuned_by_arm: dict[str, dict[str, Any]] = {}
    sign = 1.0 if plan.setting.better == "more" else -1.0
    for arm in arms:
        # A value with a failed run is left out: its mean over the other seeds would flatter it.
        means = []
        for values in plan.candidates(arm):
            ends = [_end_measure(job, plan.setting.measure) for job in plan.tuning_jobs(arm, values)]
            if ends and all(e is not None for e in ends):
                means.append((sign * fmean([e for e in ends if e is not None]), values))
        if means:
            tuned_by_arm[arm.label] = dict(max(means, key=lambda pair: pair[0])[1])
            notify(f"  {arm.label}: {', '.join(f'{k}={v}' for k, v in tuned_by_arm[arm.label].items())}")
    base = next(arm.label for arm in plan.arms if arm.kind == "base")
    tuned_by_arm |= {
        arm.label: tuned_by_arm[base] for arm in plan.arms if arm.kind == "control" and base in tuned_by_arm
    }
    return tuned_by_arm


def _end_measure(job: Job, measure: str) -> float | None:
    """The measure at the end of a run; None if the run is not finished or failed."""
    if not job.is_done or job.trouble:
        return None
    result = read_run(job.path, "", 0, measure)
    return result.end if result.points else None


def tuned_plan(plan: Plan, tuned_by_arm: Mapping[str, Mapping[str, Any]]) -> Plan:
    """The plan with each arm at its tuned values."""
    arms = [replace(arm, keys={**arm.keys, **tuned_by_arm.get(arm.label, {})}) for arm in plan.arms]
    return replace(plan, arms=arms, tuning={})


def run_jobs(runner: Runner, jobs: Sequence[Job], notify: Notify, measure: str) -> Iterator[Job]:
    """Run the jobs, yield each as it ends and notify of its result."""
    new = sum(not job.is_done for job in jobs)
    n_done = len(jobs) - new
    if n_done:
        notify(f"{n_done} of {len(jobs)} runs are there already")
    for job, trouble in runner(jobs):
        # What was stopped continues with the same command, and is no result.
        if new and not trouble.startswith(STOPPED):
            n_done = sum(j.is_done for j in jobs)
            end = _end_measure(job, measure)
            outcome = trouble or (f"{measure.removeprefix('eval_')} {end:.3f}" if end is not None else "no evaluation")
            notify(f"  {n_done}/{len(jobs)}  {name_of(job)}: {outcome}")
        elif trouble.startswith(STOPPED):
            notify(f"  {name_of(job)}: {trouble}")
        yield job


def name_of(job: Job) -> str:
    """Name of a job for users: `ARM seed-N`, or `ARM KEY=VALUE seed-N` of a tuning run."""
    folders = job.path.parts
    return " ".join(folders[folders.index("tuning") + 1 :] if "tuning" in folders else folders[-2:])


def collect(plan: Plan) -> list[RunResult]:
    """Results of the plan's finished runs."""
    results = []
    for arm in plan.arms:
        for seed in plan.seeds:
            job = plan.job(arm, seed)
            if not job.is_done:
                continue
            result = read_run(job.path, arm.label, seed, plan.setting.measure)
            results.append(replace(result, trouble=job.trouble or result.trouble))
    return results


def with_horizons(plan: Plan, costs: Mapping[str, Mapping[str, Any]]) -> Plan:
    """The plan with `trainer.steps` stated for arms that read it: those with a schedule of the learning rate, or a part
    whose coefficient follows the run's progress. Other arms train until the budget is spent.

    costs  arm -> figures of its probe
    """
    arms = []
    for arm in plan.arms:
        resolved = config.resolve(with_origin(run_keys(plan.setting, arm, plan.seeds[0]), f"arm {arm.label}"))
        states_steps = "trainer.steps" in arm.keys or "trainer.steps" in plan.setting.keys
        if not states_steps and arm.label in costs and reads_progress(resolved):
            arm = replace(arm, keys={**arm.keys, "trainer.steps": int(costs[arm.label]["steps"])})
        arms.append(arm)
    return replace(plan, arms=arms)


def reads_progress(resolved: config.RunConfig) -> bool:
    """Return True if the configuration depends on the number of steps of the run."""
    configurations = resolved.phases or (resolved,)
    parts = (part for configuration in configurations for part in configuration.method.parts())
    open_ended = any(
        number.schedule.over is None for configuration in configurations for number in configuration.method.scheduled
    )
    by_run = open_ended or any(configuration.settings.optim.schedule != "constant" for configuration in configurations)
    return by_run or any(hasattr(part, "total_steps") for part in parts)
