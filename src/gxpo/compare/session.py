"""What one `gxpo compare` does: settings or runs that exist, one after the other; shows and saves what is there."""

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
from gxpo.compare.jobs import Local
from gxpo.compare.results import Comparison
from gxpo.compare.sentences import over_settings
from gxpo.compare.suites import Setting
from gxpo.methods import METHODS


class Session:
    """One call of the command.

    given    methods, or paths of runs
    options  of the command line, by name
    """

    def __init__(
        self,
        given: Sequence[str],
        task: str | None,
        suite: str | None,
        options: Mapping[str, Any],
        *,
        commands: Sequence[str],
        notify: Callable[[str], None],
    ) -> None:
        self.given, self.options, self.commands, self.notify = list(given), dict(options), list(commands), notify
        paths = [a for a in given if is_run(a)]
        if paths and len(paths) < len(given):
            other = next(a for a in given if a not in paths)
            raise ConfigError(f"{paths[0]} is a run and {other} is none: compare runs, or methods")
        if paths and (task or suite):
            raise ConfigError("runs that exist have their task: leave out --task and --suite")
        self.existing = bool(paths)
        self.settings: list[Setting] = []
        self.arms = self.given
        if suite is not None:
            if task is not None:
                raise ConfigError("give --task or --suite, not both")
            found = suites.suite(suite)
            self.settings, self.arms = [self._setting(x.name) for x in found.settings], self.given or list(found.arms)
        elif not paths:
            self.settings = [self._setting(task or "sums")]
        if not paths and not self.arms:
            raise ConfigError("which methods? e.g. gxpo compare dr_grpo rloo --task sums")
        name = suite or (self.settings[0].name if self.settings else "runs")
        self.out = Path(options["out"] or f"runs/compare-{folder(name)}")
        self.study = options["study"] or suite or "compare"
        self.comparisons: list[Comparison] = []
        self.plans: list[dict[str, Any]] = []

    def _setting(self, task: str) -> Setting:
        o = self.options
        budget = parse_budget(o["budget"]) if o["budget"] else None
        made = {"model": o["model"], "sets": o["sets"], "budget": budget, "measure": o["measure"]}
        return make_setting(task, **made, better=o["better"])

    def go(self, runner: Local) -> None:
        """Make the runs, setting by setting; on Ctrl-C what is there is concluded from, too."""
        if self.existing:
            o = self.options
            asked = {k: o[k] for k in ("base", "measure", "better")}
            self.comparisons = [on_existing(self.given, **asked, commands=self.commands)]
            return
        for setting in self.settings:
            place = self.out if len(self.settings) == 1 else self.out / folder(setting.name)
            on_setting(
                setting,
                self.arms,
                out=place,
                seeds=range(self.options["seeds"]),
                base=self.options["base"],
                controls=self.options["controls"],
                tuning=tuning_of(self.options["tune"]),
                tuning_seeds=self.options["tuning_seeds"],
                resolve=self.options["resolve"],
                plan_only=self.options["plan_only"],
                runner=runner,
                commands=self.commands,
                notify=self.notify,
                keep=self.comparisons,
                plans=self.plans,
            )

    def show(self, *, as_json: bool, row: bool) -> None:
        """The table, the files and, where asked for, JSON or rows."""
        from gxpo.base import terminal
        from gxpo.compare.text import show

        if not self.comparisons:
            terminal.say("no run is done yet")
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
            for arm in over_settings(self.comparisons):
                console.print("; ".join(arm.said))
        if row:
            for comparison in self.comparisons:
                terminal.say("\n".join(rows(comparison, self.study)))
        console.print(f"page: {self.out / 'compare.html'}", soft_wrap=True)


def is_run(given: str) -> bool:
    """Whether it is a path of what a run left, not a method or a file of keys; a folder called as a method is a run
    where a slash says so (`./dapo`)."""
    path = given if Path(given).exists() else given.partition("=")[2]
    return path not in METHODS and not path.endswith((".yaml", ".yml")) and bool(path) and Path(path).exists()


def suites_listed() -> str:
    """Names, ideas, settings and arms of the suites."""
    lines = []
    for name in suites.names():
        found = suites.suite(name)
        lines.append(f"{name}: {found.idea}")
        for s in found.settings:
            lines.append(f"  --task {s.name}: {s.keys.get('model')}, {s.keys.get('task')}, {s.budget}, {s.measure}")
        lines.append(f"  arms: {', '.join(found.arms)}")
    return "\n".join(lines)


def suites_as_data() -> list[dict[str, Any]]:
    """The same as `suites_listed`, as JSON objects."""
    found = [suites.suite(name) for name in suites.names()]
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
        for x in found
    ]


@contextmanager
def runner_on(where: str, jobs: int | None, threads: int) -> Iterator[Local]:
    """The processes that train; they end with the block."""
    if where == "local":
        runner = Local(jobs, threads)
    elif where == "ray":
        from gxpo.compare.ray import Ray

        runner = Ray(jobs, threads)
    else:
        raise ConfigError(f"--on {where}: local or ray")
    try:
        yield runner
    finally:
        runner.close()
