"""One call of `gxpo try`: arms from the command line or from remedies, then plan, run, show and save."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gxpo.base.errors import ConfigError, did_you_mean
from gxpo.base.terminal import say
from gxpo.compare import trial_arms, trial_child
from gxpo.compare.arms import folder
from gxpo.compare.command import on_setting, save
from gxpo.compare.experiment import RUN_ONLY_KEYS
from gxpo.compare.looks import Ledger, rule
from gxpo.compare.results import Arm, Budget, Comparison
from gxpo.compare.suites import Setting
from gxpo.compare.trial import (
    DONE,
    Trial,
    conclude_trial,
    installed_fields,
    last_checkpoint,
    outcome_as_data,
    refuse_other,
    refuse_several_processes,
    run,
)
from gxpo.compare.trial_plan import Cost, cost_of, plan_lines, step_cost, visible_gpus
from gxpo.doctor import read as read_log


@dataclass(frozen=True)
class Request:
    """Options of the command line; see `gxpo try --help`."""

    script: Path | None
    argv: Sequence[str]
    arms: Sequence[str]
    remedies: Path | None
    seeds: int
    steps: int
    first_seed: int
    minutes: float | None
    tokens: float | None
    sequential: bool
    metric: str | None
    start: Path | None
    command: str | None
    template: str | None
    writes: Sequence[str]
    python: str
    jobs: int
    out: Path | None
    command_line: str

    @property
    def is_own_run(self) -> bool:
        """True if the trial continues a run of gxpo."""
        return self.script is None and not self.command and self.template is None and self.start is not None


class Session:
    """A trial from its request to its page."""

    def __init__(self, request: Request, notify: Callable[[str], None]) -> None:
        self.request, self.notify = request, notify
        self.by_hand: Sequence[tuple[str, str]] = ()
        self.costs: tuple[float | None, float | None] = (None, None)
        self.trial = self._trial()
        self.out = self.trial.out

    def _trial(self) -> Trial:
        """The trial of the request; `ConfigError` before anything runs for what can't be tried."""
        request = self.request
        script, command, override = request.script, request.command or "", "{key}={value}"
        if request.template is not None:
            command, override = self._from_template(request.template)
        if (script is None) == (not command) and request.template is None:
            raise ConfigError("give a SCRIPT of TRL, or --command for another trainer (--template list shows some)")
        refuse_several_processes(script)
        # Settings of TRL are those of the installed one; another trainer's are its own business.
        fields = None if command else installed_fields(request.python)
        if command:
            trial_arms.check_template(command)
            if "{steps}" not in command:
                self.notify(f"the command has no {{steps}}: it must end by itself after {request.steps} steps")
        arms, start = trial_arms.arms_of(request.arms, fields), request.start
        if start is not None and not start.is_dir():
            raise ConfigError(f"--from {start}: no such folder")
        if request.remedies is not None:
            arms, start = self._with_remedies(arms, start, fields)
        if len(arms) == 1:
            raise ConfigError("nothing to try: give --arm KEY=VALUE, or --remedies RUN")
        metric = request.metric or "reward"
        trial_arms.refuse_meaning(arms, metric)
        name = folder(script.stem if script else command.split("{")[0].strip())
        return Trial(
            arms, range(request.first_seed, request.first_seed + request.seeds), request.steps,
            request.out or Path(f"runs/try-{name}"), script=None if command else script, argv=request.argv,
            command=command, override=override, metric=metric, start=start, writes=request.writes,
            minutes=request.minutes, tokens=request.tokens, sequential=request.sequential, python=request.python,
            jobs=request.jobs, command_line=request.command_line,
        )  # fmt: skip

    def _from_template(self, name: str) -> tuple[str, str]:
        table = trial_arms.templates()
        if name not in table:
            raise ConfigError(f"--template {name}: there is none{did_you_mean(name, table)} ({', '.join(table)})")
        if self.request.script is None:
            raise ConfigError(f"--template {name}: give your launch script, as gxpo try run.sh --template {name}")
        self.notify(f"template {name}; run here with it: {table[name]['ran']}")
        return table[name]["command"].replace("{script}", str(self.request.script)), table[name]["override"]

    def _with_remedies(
        self, arms: list[Any], start: Path | None, fields: Sequence[str] | None
    ) -> tuple[list[Any], Any]:
        """Add the remedies of a run as arms; its last checkpoint is the start, unless an arm is to begin before it."""
        path = self.request.remedies
        assert path is not None
        remedies = trial_arms.remedies_of(read_log(path), fields)
        self.by_hand, self.costs = remedies.by_hand, step_cost(path)
        for arm in remedies.arms:
            self.notify(f"{arm.label}: for {remedies.sources[arm.label]}")
        for sickness, line in remedies.by_hand:
            self.notify(f"work for a person ({sickness}): {line}")
        if not remedies.arms:
            raise ConfigError(f"--remedies {path}: no finding of the doctor has a remedy that is a setting")
        checkpoint = last_checkpoint(path)
        if start is None and checkpoint is not None and remedies.needs_start:
            self.notify(f"not from {checkpoint}: a remedy is to begin before the run went wrong; --from sets another")
        elif start is None:
            start = checkpoint
        return [*arms, *(a for a in remedies.arms if all(dict(a.keys) != dict(b.keys) for b in arms))], start

    def plan(self) -> None:
        """Check the directory and print arms, runs and costs."""
        Ledger.open(self.trial.out, self.trial.budget)
        refuse_other(self.trial)
        for line in plan_lines(self.trial, self._cost()):
            self.notify(line)

    def _cost(self) -> Cost:
        return cost_of(self.trial, *self.costs, visible_gpus())

    def plan_as_data(self) -> dict[str, Any]:
        """The plan as JSON's own types."""
        t, cost = self.trial, self._cost()
        runs = len(t.arms) * len(t.seeds)
        return {
            "arms": [{"label": a.label, "kind": a.kind, "keys": dict(a.keys)} for a in t.arms],
            "seeds": len(t.seeds), "steps": t.steps, "runs": runs, "metric": t.metric, "out": str(t.out),
            "from": str(t.start) if t.start else None, "by_hand": [{"sickness": s, "what": w} for s, w in self.by_hand],
            "missing": cost.runs, "time_s": cost.seconds, "generated_tokens": cost.tokens,
            "gpu_hours": cost.gpu_hours, "rule": rule(t.budget, len(t.arms) - 1),
        }  # fmt: skip

    def go(self) -> None:
        """Run what is missing."""
        program = self.trial.script or self.trial.command
        self.notify(f"running {program} in child processes: unlike `gxpo convert`, a trial executes it")
        run(self.trial, self.notify)

    def show(self, *, as_json: bool) -> None:
        """Print and save the comparison of the finished runs."""
        from gxpo.base import terminal
        from gxpo.compare.text import show

        if not any((self.trial.path(a, s) / DONE).is_file() for a in self.trial.arms for s in self.trial.seeds):
            return
        outcome = conclude_trial(self.trial)
        save([outcome.comparison], self.out)
        if as_json:
            say(json.dumps(outcome_as_data(outcome), indent=1))
            return
        show(outcome.comparison, terminal.console())
        say(f"page: {self.out / 'compare.html'}")


class RunSession:
    """A trial that continues a run of gxpo from its last checkpoint, on the engine of `gxpo compare`."""

    def __init__(self, request: Request, notify: Callable[[str], None]) -> None:
        from gxpo.training.train import keys_from_run

        self.request, self.notify = request, notify
        assert request.start is not None
        # Refused before the run is read.
        if request.minutes is not None or request.tokens is not None:
            raise ConfigError("--minutes and --tokens are of a script's trial: a run of gxpo takes --seeds")
        keys = {k: s.value for k, s in keys_from_run(request.start, {}).items()}
        self.base = str(keys["method"])
        # What ends a run is the trial's own.
        shared_keys = {k: v for k, v in keys.items() if k not in RUN_ONLY_KEYS and not k.startswith("trainer.max_")}
        measure = request.metric or "eval_accuracy"
        self.setting = Setting(
            name=request.start.name, keys=shared_keys, budget=Budget("updates", request.steps), measure=measure
        )
        arms = trial_arms.arms_of(request.arms, None)[1:]
        if request.remedies is not None:
            remedies = trial_arms.remedies_of(read_log(request.remedies), None)
            arms += remedies.arms
            for sickness, line in remedies.by_hand:
                notify(f"work for a person ({sickness}): {line}")
        if not arms:
            raise ConfigError("nothing to try: give --arm KEY=VALUE, or --remedies RUN")
        self.arms = [self._spec(arm, shared_keys) for arm in arms]
        self.out = request.out or Path(f"runs/try-{folder(request.start.name)}")
        self.comparisons: list[Comparison] = []
        self.plans: list[dict[str, Any]] = []

    def _spec(self, arm: Arm, shared_keys: Mapping[str, Any]) -> str:
        """The arm as `gxpo compare` writes it, with values in terms of the run's own worked out."""
        changes = []
        for key, value in arm.keys.items():
            if isinstance(value, str) and trial_child.RELATIVE.fullmatch(value):
                try:
                    value = trial_child.relative(shared_keys.get(key), value)
                except trial_child.Refusal as refusal:
                    raise ConfigError(f"arm {arm.label}: {key}: {refusal}") from None
            if key != "method":
                changes.append(f"{key}={value}")
        method = str(arm.keys.get("method", self.base))
        return f"{method}:{','.join(changes)}" if changes else method

    def _compare(self, *, plan_only: bool) -> None:
        on_setting(
            self.setting, self.arms, out=self.out, base=self.base, controls=False, sequential=self.request.sequential,
            seeds=range(self.request.first_seed, self.request.first_seed + self.request.seeds),
            commands=[self.request.command_line], notify=self.notify, plan_only=plan_only, keep=self.comparisons,
            plans=self.plans,
        )  # fmt: skip

    def plan(self) -> None:
        """Print arms, runs and costs, measured on two steps."""
        self._compare(plan_only=True)

    def plan_as_data(self) -> dict[str, Any]:
        """The plan as JSON's own types."""
        return self.plans[0]

    def go(self) -> None:
        """Run what is missing."""
        self.comparisons.clear()
        self._compare(plan_only=False)

    def show(self, *, as_json: bool) -> None:
        """Print and save the comparison of the finished runs."""
        from gxpo.base import terminal
        from gxpo.compare.files import to_json
        from gxpo.compare.text import show

        for comparison in self.comparisons[-1:]:
            save([comparison], self.out)
            if as_json:
                say(json.dumps(to_json(comparison), indent=1))
            else:
                show(comparison, terminal.console())
                say(f"page: {self.out / 'compare.html'}")


def templates_as_text() -> str:
    """Templates of commands as text, each with what was run with it."""
    return "\n".join(f"{name} (run here: {t['ran']})\n  {t['command']}" for name, t in trial_arms.templates().items())
