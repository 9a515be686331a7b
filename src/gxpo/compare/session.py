"""One call of `gxpo compare`: train or read the runs of each setting, then show and save the comparisons."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gxpo.base.errors import ConfigError
from gxpo.compare import suites
from gxpo.compare.arms import folder
from gxpo.compare.command import on_existing, on_setting, save, tuning_of
from gxpo.compare.experiment import make_setting, parse_budget
from gxpo.compare.files import row as rows
from gxpo.compare.files import to_json
from gxpo.compare.jobs import Local, Ray
from gxpo.compare.results import Comparison
from gxpo.compare.sentences import over_settings
from gxpo.compare.suites import Setting
from gxpo.methods import METHODS


class Session:
    """One call of the command, checked before anything runs.

    arguments  methods, or paths of existing runs
    options    of the command line, by name
    """

    def __init__(
        self,
        arguments: Sequence[str],
        task: str | None,
        suite: str | None,
        options: Mapping[str, Any],
        *,
        commands: Sequence[str],
        notify: Callable[[str], None],
    ) -> None:
        self.arguments, self.options = list(arguments), dict(options)
        self.commands, self.notify = list(commands), notify
        # Existing runs bring their task, budget and seeds along; beside methods to train there would be two of each.
        run_paths = [a for a in arguments if is_run(a)]
        if run_paths and len(run_paths) < len(arguments):
            method = next(a for a in arguments if a not in run_paths)
            raise ConfigError(f"{run_paths[0]} is a run and {method} is not: compare runs, or methods")
        if run_paths and (task or suite):
            raise ConfigError("existing runs have their own task: leave out --task and --suite")
        self.compares_existing_runs = bool(run_paths)
        self.settings: list[Setting] = []
        self.arms = self.arguments
        if suite is not None:
            if task is not None:
                raise ConfigError("give --task or --suite, not both")
            # Only the names are taken from the suite: its settings may be changed by --set and --model.
            chosen_suite = suites.suite(suite)
            self.settings = [self._setting(s.name) for s in chosen_suite.settings]
            self.arms = self.arguments or list(chosen_suite.arms)
        elif not run_paths:
            self.settings = [self._setting(task or "sums")]
        if not run_paths and not self.arms:
            raise ConfigError("which methods? e.g. gxpo compare dr_grpo rloo --task sums")
        # The directory depends on the suite or task alone, so that the same command continues its own runs.
        name = suite or (self.settings[0].name if self.settings else "runs")
        self.out = Path(options["out"] or f"runs/compare-{folder(name)}")
        self.study = options["study"] or suite or "compare"
        self.comparisons: list[Comparison] = []
        self.plans: list[dict[str, Any]] = []

    def _setting(self, task: str) -> Setting:
        opts = self.options
        budget = parse_budget(opts["budget"]) if opts["budget"] else None
        overrides = {"model": opts["model"], "sets": opts["sets"], "budget": budget, "measure": opts["measure"]}
        return make_setting(task, **overrides, better=opts["better"])

    def go(self, runner: Local) -> None:
        """Make the runs, setting by setting. On Ctrl-C, `comparisons` holds what the finished runs allow."""
        if self.compares_existing_runs:
            choices = {k: self.options[k] for k in ("base", "measure", "better")}
            self.comparisons = [on_existing(self.arguments, **choices, commands=self.commands)]
            return
        for setting in self.settings:
            # Several settings need a directory each: their arms have the same labels.
            directory = self.out if len(self.settings) == 1 else self.out / folder(setting.name)
            on_setting(
                setting,
                self.arms,
                out=directory,
                seeds=range(self.options["seeds"]),
                base=self.options["base"],
                controls=self.options["controls"],
                tuning=tuning_of(self.options["tune"]),
                tuning_seeds=self.options["tuning_seeds"],
                resolve=self.options["resolve"],
                sequential=self.options["sequential"],
                plan_only=self.options["plan_only"],
                runner=runner,
                commands=self.commands,
                notify=self.notify,
                keep=self.comparisons,  # filled in place, so that an interruption loses nothing
                plans=self.plans,
            )

    def show(self, *, as_json: bool, row: bool) -> None:
        """Save the files and print tables; `as_json`: JSON instead; `row`: also the rows of a results table."""
        from gxpo.base import terminal
        from gxpo.compare.text import show

        if not self.comparisons:
            terminal.say("no run is finished yet")
            return
        save(self.comparisons, self.out)
        if as_json:
            documents = [to_json(c) for c in self.comparisons]
            terminal.say(json.dumps(documents[0] if len(documents) == 1 else documents, indent=1))
            return
        console = terminal.console()
        for comparison in self.comparisons:
            show(comparison, console)
        if len(self.comparisons) > 1:
            # Over a suite, what counts is in how many settings an arm was better, and the mean over them.
            for arm in over_settings(self.comparisons):
                console.print("; ".join(arm.sentences))
        if row:
            for comparison in self.comparisons:
                terminal.say("\n".join(rows(comparison, self.study)))
        console.print(f"page: {self.out / 'compare.html'}", soft_wrap=True)


def is_run(argument: str) -> bool:
    """Return True for the path of an existing run, False for a method or a YAML file of keys.

    A folder with the name of a method counts as a run only if written with a slash (`./dapo`).
    """
    # LABEL=PATH, unless the whole is a path that happens to hold "=", as directories of arms do.
    path = argument if Path(argument).exists() else argument.partition("=")[2]
    return path not in METHODS and not path.endswith((".yaml", ".yml")) and bool(path) and Path(path).exists()


def suites_as_text() -> str:
    """Describe all suites as text: name, idea, settings, arms."""
    lines = []
    for name in suites.names():
        suite = suites.suite(name)
        lines.append(f"{name}: {suite.idea}")
        for s in suite.settings:
            lines.append(f"  --task {s.name}: {s.keys.get('model')}, {s.keys.get('task')}, {s.budget}, {s.measure}")
        lines.append(f"  arms: {', '.join(suite.arms)}")
    return "\n".join(lines)


def suites_as_data() -> list[dict[str, Any]]:
    """Describe all suites as JSON objects, with the same content as `suites_as_text`."""
    every_suite = [suites.suite(name) for name in suites.names()]
    return [
        {
            "suite": x.name,
            "idea": x.idea,
            "settings": [
                {"task": s.name, "keys": dict(s.keys), "budget": {s.budget.unit: s.budget.amount}, "measure": s.measure}
                for s in x.settings
            ],
            "arms": list(x.arms),
        }
        for x in every_suite
    ]


@contextmanager
def runner_on(place: str, jobs: int | None, threads: int) -> Iterator[Local]:
    """Yield the processes that train, on this machine or on a Ray cluster; they end with the block."""
    if place == "local":
        runner = Local(jobs, threads)
    elif place == "ray":
        runner = Ray(jobs, threads)
    else:
        raise ConfigError(f"--on {place}: local or ray")
    try:
        yield runner
    finally:
        runner.close()
