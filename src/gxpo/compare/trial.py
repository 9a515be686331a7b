"""`gxpo try`: paired runs of a user's own script or command, one child process for each arm and seed.

Estimates, verdicts, files and page are those of `gxpo compare`; what is here runs the children and reads their curves.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gxpo.base.errors import ConfigError, RecordError, did_you_mean
from gxpo.compare import foreign, looks, trial_arms, trial_child
from gxpo.compare.arms import folder
from gxpo.compare.command import versions
from gxpo.compare.conclude import conclude
from gxpo.compare.jobs import STOPPED
from gxpo.compare.reading import StepCost, figures_of, trace_of, windows
from gxpo.compare.results import Arm, Budget, Comparison, RunResult
from gxpo.compare.stopping import Decision, TrialBudget
from gxpo.compare.trial_start import Children
from gxpo.compare.wording import duration, number
from gxpo.doctor import Finding, diagnose
from gxpo.doctor import read as read_log
from gxpo.training import metrics
from gxpo.training.checkpoint import write_atomic

ATTEMPTS = 2  # at a child that is killed
DONE, LOG = "done.json", "log.txt"
EXPLODED = 10.0  # times the base's largest gradient norm or advantage, and at least this
SIZES = {"grad_norm": "gradient norm", "gxpo_largest_advantage": "advantage"}
SEVERAL = ("WORLD_SIZE", "LOCAL_RANK", "RANK", "ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_FSDP")
LAUNCHERS = ("accelerate", "torchrun", "deepspeed")
# Variables that would send: of trackers, and tokens of hubs.
SENDING = re.compile(
    r"(WANDB|COMET|MLFLOW|NEPTUNE|CLEARML|TRACKIO|SWANLAB|DVCLIVE|AIM|TENSORBOARD)_|.*_TOKEN$|HUGGINGFACE"
)
Notify = Callable[[str], None]


@dataclass(frozen=True)
class Trial:
    """A trial: what is run, the arms, seeds and steps.

    script    the user's, with its arguments; None: another trainer's `command`
    command   words with {overrides}, {steps}, {seed} and {out}; `override` is how a setting is written in it
    metric    figure compared: a name that the trainer logs
    start     checkpoint whose weights every run begins with
    writes    folders in which the script may write besides
    jobs      children at a time, of one seed
    minutes, tokens  no further seed is begun that would not end within; None: no limit
    sequential  arms that are decided get no further seed
    python    interpreter of the children
    """

    arms: Sequence[Arm]
    seeds: Sequence[int]
    steps: int
    out: Path
    script: Path | None = None
    argv: Sequence[str] = ()
    command: str = ""
    override: str = "{key}={value}"
    metric: str = "reward"
    start: Path | None = None
    writes: Sequence[str] = ()
    minutes: float | None = None
    tokens: float | None = None
    sequential: bool = False
    jobs: int = 1
    python: str = sys.executable
    command_line: str = ""

    @property
    def budget(self) -> TrialBudget:
        """Limits of the trial, as the stopping rule takes them."""
        return TrialBudget(len(self.seeds), self.minutes, self.tokens, self.sequential)

    def path(self, arm: Arm, seed: int) -> Path:
        return self.out / folder(arm.label) / f"seed-{seed}"

    def job(self, arm: Arm, seed: int) -> dict[str, Any]:
        """Contents of a child's job.json: two with the same contents are the same run."""
        keys = {k: v for k, v in arm.keys.items() if k != "method" and "." not in k}
        words: list[str] = []
        if self.script is None:
            words = trial_arms.command_of(
                self.command, arm.keys, override=self.override, steps=self.steps, seed=seed,
                out=self.path(arm, seed).resolve(),
            )  # fmt: skip
        return {
            "script": str(self.script.resolve()) if self.script else "",
            "sha256": hashlib.sha256(self.script.read_bytes()).hexdigest() if self.script else "",
            "argv": list(self.argv), "command": words, "settings": keys if self.script else {},
            "method": arm.keys.get("method", "") if self.script else "",
            "overrides": {k: v for k, v in arm.keys.items() if "." in k} if self.script else {},
            "seed": seed, "steps": self.steps, "metric": self.metric,
            "from": str(self.start.resolve()) if self.start else "",
            "writes": [str(Path(p).resolve()) for p in self.writes],
        }  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """Result of a trial.

    doctor       arm -> the doctor's first finding on its runs, in a line
    recommended  the arm that is better than the base and gained nothing sick by it; empty if there is none
    """

    comparison: Comparison
    doctor: Mapping[str, str] = field(default_factory=dict)
    recommended: str = ""


# ---------------------------------------------------------------- before anything runs
def installed_fields(python: str) -> list[str]:
    """Settings of the installed TRL's GRPOConfig and RLOOConfig; `ConfigError` where there is no TRL."""
    command = [python, "-m", "gxpo.compare.trial_child", "fields"]
    process = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    try:
        names = json.loads(process.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        reason = (process.stderr.strip().splitlines() or ["no answer"])[-1]
        raise ConfigError(
            f"{python} can't load trl ({reason}): pip install 'gxpo[trl]' there, or --python PATH"
        ) from None
    return list(dict.fromkeys(name for fields in names.values() for name in fields))


def refuse_several_processes(script: Path | None) -> None:
    """Raise `ConfigError` for a launcher in place of a script, and inside one's processes."""
    if script is not None and script.name in LAUNCHERS:
        raise ConfigError(f"{script.name} starts several processes, and a trial runs in one: give the script itself")
    variable = next((v for v in SEVERAL if os.environ.get(v, "1") not in ("", "0", "1", "false")), None)
    if variable is not None:
        raise ConfigError(f"{variable}={os.environ[variable]}: this is a process of several; run gxpo try in a shell")
    if script is not None and not script.is_file():
        raise ConfigError(f"{script}: no such script")


def refuse_other(trial: Trial) -> None:
    """Raise `ConfigError` if finished runs of the directory were made of something else."""
    for arm in trial.arms:
        for seed in trial.seeds:
            path = trial.path(arm, seed)
            if not (path / DONE).is_file() or trouble_of(path):
                continue
            recorded_job, job = json.loads((path / trial_child.JOB).read_text()), trial.job(arm, seed)
            for key, value in job.items():
                if recorded_job.get(key) != value:
                    difference = (
                        "another version of the script" if key == "sha256" else f"{key}={recorded_job.get(key)!r}"
                    )
                    raise ConfigError(f"{path} was made with {difference}: give another --out")


# ---------------------------------------------------------------- children
def run(trial: Trial, notify: Notify = lambda line: None) -> None:
    """Run what is missing, seed by seed with base and arms side by side, until the stopping rule ends it.

    Raises `ConfigError` if the first run of the base fails or has no such metric: so would all others.
    """
    ledger = looks.Ledger.open(trial.out, trial.budget)
    ledger.write()
    todo = [(a, s) for s in trial.seeds for a in trial.arms if is_missing(trial, a, s)]
    begin, total, n_done = time.monotonic(), len(todo), 0
    last = begin
    environment = environment_of(trial.out)
    children = Children(trial.python, environment, imports_trl=trial.script is not None)

    def report(arm: Arm, seed: int, trouble: str) -> None:
        nonlocal n_done, last
        n_done += 1
        # The time is stored with every run, so that a trial that is killed goes on within its minutes.
        last, previous_end = time.monotonic(), last
        ledger.seconds, ledger.runs = ledger.seconds + last - previous_end, ledger.runs + 1
        ledger.write()
        result = None if trouble else result_of(trial, arm, seed)
        end = f"{trial.metric} {number(result.end)}" if result and result.points else "no figure"
        seconds_left = (last - begin) / n_done * (total - n_done)
        at_most = "at most" if trial.sequential or trial.minutes or trial.tokens else "about"
        estimate = f" ({at_most} {duration(seconds_left)} left)" if seconds_left else ""
        notify(f"  {n_done}/{total}  {arm.label} seed {seed}: {trouble or end}{estimate}")

    with ThreadPoolExecutor(trial.jobs) as pool:

        def run_seed(seed: int, arms: Sequence[Arm]) -> None:
            missing = [a for a in arms if (a, seed) in todo]
            futures = {pool.submit(run_child, trial, a, seed, children): a for a in missing}
            for future in as_completed(futures):
                report(futures[future], seed, future.result())

        try:
            # The first run of the base tells whether there is anything to compare.
            base, first = trial.arms[0], trial.seeds[0]
            if (base, first) in todo:
                todo.remove((base, first))
                trouble = pool.submit(run_child, trial, base, first, children).result()
                if trouble:
                    raise ConfigError(trouble)
                report(base, first, trouble)
            refuse_absent_metric(trial, trial.path(base, first))
            if trial.tokens and not _tokens(trial):
                raise ConfigError(f"--tokens: {trial.path(base, first)} logs no generated tokens: give --minutes")
            looks.run_seeds(
                trial.arms, trial.seeds, ledger, lambda: _decision(trial, ledger), run_seed, lambda: _tokens(trial)
            )
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        finally:
            children.end()
    if ledger.reason in ("minutes", "tokens"):
        notify(f"{ledger.reason}: the budget is spent, or would be by another seed; the trial is over")


def _decision(trial: Trial, ledger: looks.Ledger, results: Sequence[RunResult] | None = None) -> Decision:
    """The stopping rule's decision on the finished runs."""
    results = collect(trial)[0] if results is None else results
    return ledger.decide(looks.differences_of(results, trial.arms, trial.seeds))


def _tokens(trial: Trial) -> float:
    """Generated tokens of all finished runs; 0 where logs do not tell."""
    return float(sum(r.tokens for r in collect(trial)[0] if r.points))


def is_missing(trial: Trial, arm: Arm, seed: int) -> bool:
    """Return True for a run that is to be made: a failed one too, unless a look has counted it already."""
    path = trial.path(arm, seed)
    is_first = arm.kind == "base" and seed == trial.seeds[0]
    return not (path / DONE).is_file() or (bool(trouble_of(path)) and (is_first or not trial.sequential))


def run_child(trial: Trial, arm: Arm, seed: int, children: Children) -> str:
    """Run one child to its end; the reason why it failed, empty on success. It dies with this process."""
    path = trial.path(arm, seed)
    trouble = ""
    for _ in range(ATTEMPTS):
        # Nothing of a run that did not end is used: it starts anew, so that an interruption changes no figure.
        if path.exists():
            shutil.rmtree(path)
        path.mkdir(parents=True)
        (path / trial_child.JOB).write_text(json.dumps(trial.job(arm, seed), indent=1))
        code = children.run(path, path / LOG)
        if children.is_ending:
            return STOPPED
        end = path / trial_child.END
        if end.is_file():
            trouble = str(json.loads(end.read_text())["trouble"])
            break
        trouble = f"{STOPPED}: its process ended with {code}, see {path / LOG}"
    write_atomic(path / DONE, json.dumps({"trouble": trouble}))
    return trouble


def environment_of(path: Path) -> dict[str, str]:
    """Environment of the children of a trial: without tokens of hubs and variables of trackers."""
    safe_variables = {k: v for k, v in os.environ.items() if not SENDING.match(k)}
    overrides = {
        "WANDB_MODE": "disabled", "HF_TOKEN_PATH": str(path.resolve() / "no-token"),
        "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
    }  # fmt: skip
    return {**safe_variables, **overrides}


def trouble_of(path: Path) -> str:
    """Reason why a finished run failed; empty if it did not."""
    return str(json.loads((path / DONE).read_text())["trouble"]) if (path / DONE).is_file() else ""


def refuse_absent_metric(trial: Trial, path: Path) -> None:
    """Raise `ConfigError` if a run has not logged the metric."""
    if trial.script is not None:
        names = [n for n in figures_of(metrics.read(path / trial_child.METRICS)) if not n.startswith("gxpo_")]
        has_metric = trial.metric in names
    else:
        log = read_log(path)
        names = [*log.series, *log.raw]
        has_metric = foreign.has_curve(log, trial.metric)
    if not has_metric:
        hint = did_you_mean(trial.metric, names) or ";"
        names_text = ", ".join(names[:20]) or f"nothing: see {path / LOG}"
        raise ConfigError(f"--metric {trial.metric}: no log has it{hint} it has {names_text}")


# ---------------------------------------------------------------- results
def result_of(trial: Trial, arm: Arm, seed: int, budget: Budget | None = None) -> RunResult:
    """Curve and costs of a finished run."""
    path = trial.path(arm, seed)
    trouble = trouble_of(path)
    if trial.script is None:
        try:
            return replace(
                foreign.read_log(read_log(path), path, arm.label, seed, trial.metric, budget), trouble=trouble
            )
        except (ConfigError, RecordError) as error:
            return RunResult(arm.label, seed, str(path), (), trouble=trouble or str(error))
    rows = metrics.read(path / trial_child.METRICS)
    costs = {row["step"]: (row["gxpo_tokens"], row["gxpo_seconds"]) for row in rows}

    def cost_at(step: int) -> StepCost:
        tokens, seconds = costs.get(step, (0, 0.0)) if step else (0, 0.0)
        return StepCost(step, int(tokens), step, float(seconds))

    pairs = [(row["step"], row[trial.metric]) for row in rows if trial.metric in row]
    if trial.metric.startswith("eval_"):
        points = [cost_at(s).point(v) for s, v in pairs if budget is None or s <= budget.amount]
    else:
        points = windows(pairs, cost_at, budget)
    if not trouble and len(points) < 2:
        trouble = f"fewer than two values of {trial.metric}"
    last = math.inf if budget is None else budget.amount
    return RunResult(arm.label, seed, str(path), tuple(points), trouble=trouble, trace=_trace(rows, last))


def _trace(rows: Sequence[Mapping[str, Any]], last: float) -> dict[str, list[float]]:
    """Figures of a run's steps, without the schedule of its rate, which tells nothing of what was sampled."""
    steps = [row for row in rows if not any(k.startswith("eval_") for k in row)]
    return {k: v for k, v in trace_of(steps, last).items() if k not in ("epoch", "learning_rate")}


def collect(trial: Trial) -> tuple[list[RunResult], Budget, list[str]]:
    """Collect the results of finished runs up to the last step of the base, and notes on actions denied to scripts."""
    finished_runs = [(a, s) for a in trial.arms for s in trial.seeds if (trial.path(a, s) / DONE).is_file()]
    whole_results = [result_of(trial, a, s) for a, s in finished_runs]
    ends = [r.points[-1].step for r in whole_results if r.points and not r.trouble]
    budget = Budget("updates", min([trial.steps, *ends]))
    notes = [f"runs end after {budget.amount:.0f} steps, not {trial.steps}: the script's own"] * (
        budget.amount < trial.steps
    )
    for arm, seed in finished_runs:
        file = trial.path(arm, seed) / trial_child.END
        notes += json.loads(file.read_text())["notes"] if file.is_file() else []
    return [result_of(trial, a, s, budget) for a, s in finished_runs], budget, list(dict.fromkeys(notes))


def conclude_trial(trial: Trial) -> Outcome:
    """Compare the finished runs; also the doctor's finding on each arm, and the arms that exploded."""
    results, budget, notes = collect(trial)
    name = trial.script.name if trial.script else trial.command.split(" {")[0]
    comparison = conclude(
        results, trial.arms, setting=name, measure=trial.metric, better="more", budget=budget,
        keys={"script": str(trial.script)} if trial.script else {"command": trial.command},
        commands=[trial.command_line] if trial.command_line else [], versions=versions(),
    )  # fmt: skip
    # In a sequential trial an arm's verdict and interval are those of the look that decided it.
    ledger = looks.Ledger.open(trial.out, trial.budget)
    if trial.sequential:
        comparison = looks.with_decision(comparison, _decision(trial, ledger, results))
    findings = {a.label: first_finding(trial, a) for a in trial.arms}
    base = next(a.label for a in trial.arms if a.kind == "base")
    explosions = dict(_explosions(trial, results))
    comparison_notes = [n for n in comparison.notes if not n.startswith("no control on shuffled")]
    best = [
        d.arm
        for d in sorted(comparison.differences, key=lambda d: -d.end.mean)
        if d.verdict == "better" and d.arm not in explosions and not _is_sicker(findings[d.arm][0], findings[base][0])
    ]
    words = {label: word for label, (_, word) in findings.items()}
    advice = f"recommended: {best[0]}" if best else "nothing is recommended"
    doctor = [f"doctor on {arm}: {word}" for arm, word in words.items()]
    ending = f"; ended by its {ledger.reason}" if ledger.reason in ("minutes", "tokens") else ""
    n_arms = sum(arm.kind == "arm" for arm in trial.arms)
    rule = f"rule: {looks.rule(trial.budget, n_arms)}{ending}"
    sampling = trial_arms.notes_on_sampling(trial.arms, trial.metric)
    notes = [advice, *explosions.values(), *sampling, *doctor, rule, *notes, *comparison_notes]
    return Outcome(replace(comparison, notes=notes), words, best[0] if best else "")


def first_finding(trial: Trial, arm: Arm) -> tuple[Finding | None, str]:
    """The doctor's first finding on most of an arm's runs, and in words: `SEVERITY: TITLE, in N of M runs`."""
    paths = [trial.path(arm, s) for s in trial.seeds if (trial.path(arm, s) / DONE).is_file()]
    diagnoses = [diagnose(read_log(p)) for p in paths]
    if not any(d.is_conclusive for d in diagnoses):
        return None, "no verdict: too little was logged of the reward" if diagnoses else "no run"
    # Runs with too few points tell neither way.
    firsts = [next((f for f in d.findings if f.severity != "note"), None) for d in diagnoses if d.is_conclusive]
    name, n = Counter(f.ids[0] if f else "" for f in firsts).most_common(1)[0]
    finding = next(f for f in firsts if (f.ids[0] if f else "") == name)
    if finding is None:
        return None, f"no sickness found, in {n} of {len(firsts)} runs"
    return finding, f"{finding.severity}: {finding.title}, in {n} of {len(firsts)} runs"


def _is_sicker(finding: Finding | None, of_base: Finding | None) -> bool:
    """Return True for something critical that the base does not have."""
    is_critical = finding is not None and finding.severity == "critical"
    return is_critical and not (of_base is not None and finding is not None and finding.ids[0] in of_base.ids)


def _explosions(trial: Trial, results: Sequence[RunResult]) -> Iterator[tuple[str, str]]:
    """(arm, sentence) for arms whose gradient or advantage was at some step many times the base's largest."""

    def largest(runs: Sequence[RunResult], name: str) -> float:
        values = [v for r in runs for v in r.trace.get(name, ()) if not math.isnan(v)]
        return max(values, default=math.nan)

    base = [r for r in results if r.arm == next(a.label for a in trial.arms if a.kind == "base")]
    for arm in trial.arms:
        runs = [r for r in results if r.arm == arm.label]
        for name, quantity in SIZES.items():
            size, base_size = largest(runs, name), largest(base, name)
            if arm.kind != "base" and size >= EXPLODED and size >= EXPLODED * base_size:
                yield (
                    arm.label,
                    f"{arm.label}: the {quantity} explodes: {size:.3g} at its largest, {base_size:.3g} in the base",
                )


def outcome_as_data(outcome: Outcome) -> dict[str, Any]:
    """The outcome as JSON's own types: that of the comparison, the doctor's words and what is recommended."""
    from gxpo.compare.files import to_json

    return {**to_json(outcome.comparison), "doctor": dict(outcome.doctor), "recommended": outcome.recommended or None}


def last_checkpoint(run_path: Path) -> Path | None:
    """The newest checkpoint-N of a TRL run; None if there is none."""
    numbered = [(int(p.name.split("-")[1]), p) for p in run_path.glob("checkpoint-*") if p.name.split("-")[1].isdigit()]
    return max(numbered)[1] if numbered else None
