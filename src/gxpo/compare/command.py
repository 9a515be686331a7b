"""`compare`: train arms on a task and draw conclusions; the Python function behind `gxpo compare`."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from gxpo.base.errors import ConfigError
from gxpo.compare import suites
from gxpo.compare.arms import SHUFFLED, folder, make_arms
from gxpo.compare.conclude import conclude
from gxpo.compare.existing import read_existing
from gxpo.compare.experiment import (
    Plan,
    check,
    collect,
    make_setting,
    refuse_other,
    run_jobs,
    tune,
    tuned_plan,
    with_horizons,
)
from gxpo.compare.files import to_json, write_csv
from gxpo.compare.forecast import Forecast, forecast
from gxpo.compare.inference import more_tasks, resolvable, seed_sd, seeds_needed
from gxpo.compare.jobs import Job, Local
from gxpo.compare.looks import Ledger, differences_of, resolution_of, rule, run_seeds, with_decision
from gxpo.compare.page import page_of
from gxpo.compare.results import Budget, Comparison
from gxpo.compare.stopping import Decision, TrialBudget
from gxpo.compare.suites import Setting
from gxpo.compare.wording import duration
from gxpo.parts.options import flatten_keys
from gxpo.training import config
from gxpo.training.checkpoint import write_atomic

ASSUMED_SD = 0.05  # standard deviation over seeds of a paired difference, where the setting was never measured
MOST_SEEDS = 400  # that `resolve` may choose
PILOT_PAIRS = 3  # fewest pairs of seeds to estimate a spread from


@dataclass(frozen=True)
class SeedSpread:
    """Spread of the paired difference between two arms on a setting.

    sd          standard deviation from seed to seed
    task_error  standard error that the held-out tasks leave with any number of seeds
    source      where the numbers come from, in words
    """

    sd: float
    task_error: float
    source: str


def compare(
    arms: Sequence[str],
    task: str = "sums",
    *,
    seeds: int | Sequence[int] = 5,
    budget: Budget | None = None,
    model: str | None = None,
    set: Sequence[str] = (),
    base: str | None = None,
    controls: bool = True,
    tune: Sequence[str] = (),
    tuning_seeds: int = 2,
    resolve: float | None = None,
    measure: str | None = None,
    better: str | None = None,
    out: str | Path | None = None,
    runner: Local | None = None,
    commands: Sequence[str] = (),
    notify: Callable[[str], None] = lambda line: None,
) -> Comparison:
    """Train every arm on every seed with one budget and compare them.

    arms      `dr_grpo`, `grpo:credit.scale=none`, `mine.yaml`, `NAME=...` (`gxpo.compare.arms`)
    task      a setting of the suites, a YAML file of keys, or a task's name
    seeds     how many, from 0, or which
    budget    of every run; None: the setting's
    set       `KEY=VALUE` for all arms
    base      what the others are compared with; None: `grpo`
    controls  whether the base on shuffled rewards runs beside
    tune      `KEY=V1,V2,...`: each arm takes the values that are best on seeds which are not reported
    resolve   instead of `seeds`: so many that a difference of this size is found with 80 % power
    measure   figure compared; None: the setting's
    out       directory; finished runs in it are not made again. None: runs/compare-TASK
    runner    processes that train; None: one for each core

    Raises `ConfigError` before anything runs if an arm can't.
    """
    # The same directory by default as the command's, so that either continues what the other began.
    setting = make_setting(task, model=model, sets=set, budget=budget, measure=measure, better=better)
    directory = Path(out) if out is not None else Path(f"runs/compare-{folder(setting.name)}")
    return on_setting(
        setting,
        arms,
        out=directory,
        seeds=range(seeds) if isinstance(seeds, int) else seeds,
        base=base,
        controls=controls,
        tuning=tuning_of(tune),
        tuning_seeds=tuning_seeds,
        resolve=resolve,
        runner=runner,
        commands=commands,
        notify=notify,
    )


def on_setting(
    setting: Setting,
    arms: Sequence[str],
    *,
    out: Path,
    seeds: Sequence[int],
    base: str | None = None,
    controls: bool = True,
    tuning: Mapping[str, Sequence[Any]] | None = None,
    tuning_seeds: int = 2,
    resolve: float | None = None,
    sequential: bool = False,
    runner: Local | None = None,
    commands: Sequence[str] = (),
    notify: Callable[[str], None] = lambda line: None,
    plan_only: bool = False,
    keep: list[Comparison] | None = None,
    plans: list[dict[str, Any]] | None = None,
) -> Comparison:
    """Compare arms on a `Setting`; see `compare` for the other arguments.

    sequential  look after each seed: arms that are decided get no further one (`gxpo.compare.stopping`)
    plan_only  only notify of the plan, and conclude from the runs that are finished
    keep       list that receives the comparison, also when Ctrl-C ends the runs
    plans      list that receives the plan as data
    """
    setting_arms = make_arms(arms, setting.keys, base=base, controls=controls)
    owns_runner = runner is None
    runner = runner or Local()
    plan = Plan(setting, setting_arms, list(seeds), out, tuning or {}, tuning_seeds, runner.threads)
    if not plan.seeds:
        raise ConfigError("--seeds: give at least 1")
    if sequential and resolve is not None:
        raise ConfigError("--resolve chooses the seeds and --sequential stops before their end: give --seeds instead")
    ledger = Ledger.open(out, TrialBudget(len(plan.seeds))) if sequential else None
    try:
        # Everything that can be refused is refused here, before a probe or a run costs anything.
        check(plan)
        cost = forecast(plan, runner, notify)
        spread = spread_of(plan)
        if resolve is not None:  # the spread decides how many seeds, and these what the runs cost
            plan = replace(plan, seeds=range(seeds_for(resolve, spread)))
            # The number of seeds changes what is missing, and with it the cost.
            cost = forecast(plan, runner, notify)
        if plans is not None:
            plans.append(plan_as_data(plan, cost, spread))
        for line in plan_lines(plan, cost, spread, runner):
            notify(line)
        if ledger is not None:
            notify(rule(ledger.budget, sum(arm.kind == "arm" for arm in setting_arms)))
        tuned_by_arm: dict[str, dict[str, Any]] = {}
        if not plan_only:
            tuned_by_arm = tune(plan, runner, notify)
        # Tuned values and stated horizons change an arm's keys, so its directories are checked once more.
        final_plan = with_horizons(tuned_plan(plan, tuned_by_arm), cost.costs)
        for job in final_plan.jobs():
            refuse_other(job)
        if not plan_only:
            write_plan(final_plan, tuned_by_arm, commands)
            # The comparison is concluded on Ctrl-C, too: the finished runs are worth a table.
            try:
                _run(final_plan, ledger, runner, notify)
            finally:
                if keep is not None and any(job.is_done for job in final_plan.jobs()):
                    keep.append(conclude_plan(final_plan, tuned_by_arm, commands, ledger))
        return keep[-1] if keep else conclude_plan(final_plan, tuned_by_arm, commands, ledger)
    finally:
        if owns_runner:
            runner.close()


def _run(plan: Plan, ledger: Ledger | None, runner: Local, notify: Callable[[str], None]) -> None:
    """Make the missing runs: all, or with a ledger seed by seed until the stopping rule ends them."""

    def run(jobs: Sequence[Job]) -> None:
        for _ in run_jobs(runner, jobs, notify, plan.setting.measure):
            pass

    if ledger is None:
        run(plan.jobs())
        return
    ledger.write()
    run_seeds(
        plan.arms, plan.seeds, ledger, lambda: _decision(plan, ledger),
        lambda seed, arms: run([plan.job(arm, seed) for arm in arms]),
    )  # fmt: skip


def _decision(plan: Plan, ledger: Ledger) -> Decision:
    """The stopping rule's decision on the finished runs of a plan."""
    results = collect(plan)
    differences = differences_of(results, plan.arms, plan.seeds, plan.setting.better)
    return ledger.decide(differences, resolution_of(results, plan.setting.measure))


def on_existing(
    paths: Sequence[str],
    *,
    base: str | None = None,
    measure: str | None = None,
    better: Literal["more", "less"] | None = None,
    commands: Sequence[str] = (),
) -> Comparison:
    """Compare existing runs: gxpo's directories, logs of TRL, verl and others (see `gxpo.compare.existing`)."""
    existing = read_existing(paths, base=base, measure=measure, better=better)
    comparison = conclude(
        existing.runs,
        existing.arms,
        setting=existing.setting,
        measure=existing.measure,
        better=existing.better,
        budget=existing.budget,
        keys=existing.keys,
        commands=commands,
        versions=versions(),
    )
    # The caveats of reading come first: they decide whether the comparison is one at all.
    return replace(comparison, notes=[*existing.notes, *comparison.notes])


def conclude_plan(
    plan: Plan, tuned: Mapping[str, Mapping[str, Any]], commands: Sequence[str], ledger: Ledger | None = None
) -> Comparison:
    """Compare the finished runs of a plan; with a ledger, verdicts and intervals are those of its stopping rule."""
    setting = plan.setting
    comparison = conclude(
        collect(plan),
        plan.arms,
        setting=setting.name,
        measure=setting.measure,
        better=setting.better,
        budget=setting.budget,
        keys=dict(setting.keys),
        tuned=tuned,
        commands=commands,
        versions=versions(),
    )
    if ledger is None:
        return comparison
    decided = with_decision(comparison, _decision(plan, ledger))
    n_arms = sum(arm.kind == "arm" for arm in plan.arms)
    return replace(decided, notes=[f"rule: {rule(ledger.budget, n_arms)}", *decided.notes])


def versions() -> dict[str, str]:
    """Versions of the packages that determine the figures, and the commit if gxpo runs from a checkout."""
    from gxpo import __file__ as package

    command = ["git", "-C", str(Path(str(package)).parent), "rev-parse", "--short", "HEAD"]
    try:
        process = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return config.versions()
    commit = process.stdout.strip() if process.returncode == 0 else ""
    return {**config.versions(), **({"commit": commit} if commit else {})}


def save(comparisons: Sequence[Comparison], out: Path) -> None:
    """Write compare.json, compare.csv and compare.html to `out`."""
    out.mkdir(parents=True, exist_ok=True)
    documents = [to_json(c) for c in comparisons]
    write_atomic(out / "compare.json", json.dumps(documents[0] if len(documents) == 1 else documents, indent=1))
    write_csv(comparisons, out / "compare.csv")
    page_of(comparisons, out / "compare.html")


def write_plan(plan: Plan, tuned: Mapping[str, Mapping[str, Any]], commands: Sequence[str]) -> None:
    """Write OUT/plan.json: the setting, arms and seeds of the newest call."""
    plan.out.mkdir(parents=True, exist_ok=True)
    document = {
        "schema": "gxpo.compare-plan/1",
        "setting": plan.setting.name,
        "keys": dict(plan.setting.keys),
        "measure": plan.setting.measure,
        "better": plan.setting.better,
        "budget": {plan.setting.budget.unit: plan.setting.budget.amount},
        "arms": [{"label": a.label, "kind": a.kind, "keys": dict(a.keys)} for a in plan.arms],
        "seeds": list(plan.seeds),
        "tuned": {k: dict(v) for k, v in tuned.items()},
        "threads": plan.threads,
        "commands": list(commands),
        "versions": versions(),
    }
    write_atomic(plan.out / "plan.json", json.dumps(document, indent=1))


def plan_lines(plan: Plan, cost: Forecast, spread: SeedSpread, runner: Local) -> list[str]:
    """Describe the plan in lines: arms, runs, time and tokens, and the difference that so many seeds can find."""
    base = next(a for a in plan.arms if a.kind == "base")
    arms = [a.label for a in plan.arms if a.kind == "arm"]
    controls = [a.label for a in plan.arms if a.kind == "control"]
    lines = [
        f"{', '.join(arms) or 'nothing'} against {base.label} on {plan.setting.name}"
        + (f" (control: {', '.join(controls)})" if controls else "")
        + f": {len(plan.seeds)} seeds, {plan.setting.budget} each"
    ]
    # Time and tokens may be unknown each by itself: a probe that would cost too much is not made.
    if cost.missing:
        processes = runner.workers
        tokens = f"{cost.tokens / 1e6:.2g} million tokens" if math.isfinite(cost.tokens) else "tokens are not known"
        if math.isfinite(cost.seconds):
            estimate = f"about {duration(cost.seconds)}, {tokens}"
        else:
            estimate = f"{tokens}; the time is not measured: {cost.unmeasured}"
        lines.append(f"{cost.missing} of {cost.runs} runs to make, {processes} at a time: {estimate}")
    # A spread needs two seeds at least.
    least = resolvable(spread.sd, len(plan.seeds), spread.task_error) if len(plan.seeds) > 1 else math.nan
    if math.isfinite(least):
        lines.append(
            f"{len(plan.seeds)} seeds tell a difference of {least:.3f} or more in four of five cases (spread of "
            f"{spread.sd:.3f} from seed to seed, {spread.source})"
        )
    else:
        lines.append("one seed says nothing of other seeds: give --seeds 5 or more")
    if not plan.tuning:
        lines.append("at one learning rate: --tune optim.lr=... chooses one for each arm on seeds of their own")
    return lines


def plan_as_data(plan: Plan, cost: Forecast, spread: SeedSpread) -> dict[str, Any]:
    """The plan as a JSON object; `resolvable` is the smallest difference found in four of five cases, None for a
    single seed."""
    least = resolvable(spread.sd, len(plan.seeds), spread.task_error) if len(plan.seeds) > 1 else math.nan
    return {
        "setting": plan.setting.name,
        "arms": [{"label": a.label, "kind": a.kind} for a in plan.arms],
        "seeds": len(plan.seeds),
        "budget": {plan.setting.budget.unit: plan.setting.budget.amount},
        "measure": plan.setting.measure,
        "runs": cost.runs,
        "missing": cost.missing,
        "time_s": cost.seconds if math.isfinite(cost.seconds) else None,
        "generated_tokens": cost.tokens if math.isfinite(cost.tokens) else None,
        "unmeasured": cost.unmeasured,
        "resolvable": least if math.isfinite(least) else None,
        "spread": spread.sd,
        "spread_source": spread.source,
        "out": str(plan.out),
    }


def spread_of(plan: Plan) -> SeedSpread:
    """Estimate the spread from this comparison's finished runs, else from the suite's measurements, else assume one."""
    # The pilot is concluded as the comparison will be, so that its spread is of the same paired differences.
    pilot = conclude_plan(plan, {}, ())
    arms = [a.label for a in plan.arms if a.kind == "arm"]
    ends = [d.end for d in pilot.differences if d.arm in arms]
    estimates = [e for e in ends if e.n >= PILOT_PAIRS and math.isfinite(seed_sd(e))]
    if estimates:
        # The arm of median spread: one arm that collapses in some seeds must not set the plan for all.
        middle = sorted(estimates, key=seed_sd)[len(estimates) // 2]
        return SeedSpread(seed_sd(middle), zero_if_unknown(middle.by_task), "from the runs that are there")
    rows = [v for name in suites.names() for v in suites.suite(name).validated]
    validated = [v for v in rows if v.setting == plan.setting.name and v.method != SHUFFLED]
    if validated:
        from scipy.stats import t

        # The suites store 95% intervals of n seeds: half of one is t(n - 1) sd / sqrt(n).
        sds = sorted((v.high - v.low) / 2 / float(t.ppf(0.975, v.seeds - 1)) * math.sqrt(v.seeds) for v in validated)
        return SeedSpread(sds[len(sds) // 2], 0.0, "as measured on this setting before")
    return SeedSpread(ASSUMED_SD, 0.0, "assumed")


def zero_if_unknown(x: float) -> float:
    return x if math.isfinite(x) else 0.0


def seeds_for(difference: float, spread: SeedSpread) -> int:
    """Number of seeds that find a true difference of this size with 80 % power."""
    if not difference > 0:
        raise ConfigError(f"--resolve {difference}: the difference must be above 0")
    n_seeds = seeds_needed(difference, spread.sd, spread.task_error)
    if n_seeds is None and spread.task_error:
        raise ConfigError(
            f"--resolve {difference}: no number of seeds will do with these held-out tasks; it takes "
            f"{more_tasks(difference, spread.task_error):.0f} times as many (--set eval.tasks=...)"
        )
    if n_seeds is None or n_seeds > MOST_SEEDS:
        raise ConfigError(
            f"--resolve {difference} takes more than {MOST_SEEDS} seeds (spread of {spread.sd:.3f}, {spread.source}): "
            "ask for a larger difference, or a longer --budget"
        )
    return n_seeds


def tuning_of(texts: Sequence[str]) -> dict[str, list[Any]]:
    """Parse `--tune` arguments, `KEY=V1,V2` or `KEY=[V1, V2]`, to key -> values."""
    values_by_key: dict[str, list[Any]] = {}
    for text in texts:
        key, sign, values = text.partition("=")
        # Parsed as a list of YAML, so that 1e-4 is a number and a text with a comma may be quoted.
        yaml_list = values if values.strip().startswith("[") else f"[{values}]"
        stated_by_key = config.parse_set([f"{key}={yaml_list}"]) if sign else {}
        value = next(iter(stated_by_key.values())).value if stated_by_key else None
        if not isinstance(value, list) or len(value) < 2:
            raise ConfigError(f"--tune {text}: write KEY=V1,V2 with at least two values, e.g. optim.lr=1e-4,3e-4,1e-3")
        flatten_keys({key: value[0]})  # an unknown key is an error here, not in the first tuning run
        values_by_key[next(iter(stated_by_key))] = value
    return values_by_key
