"""Reward for programs: what the policy wrote is run against a task's tests, in a sandbox."""

from __future__ import annotations

import json
import re
import secrets
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo.errors import ConfigError
from gxpo.rewards.docker import Docker
from gxpo.rewards.group_level import Failure
from gxpo.rewards.sandbox import PROGRAM, Limits, Local, Sandbox

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Task

FENCED = re.compile(r"```[ \t]*([A-Za-z0-9_+-]*)[^\n]*\n(.*?)(?:\n[ \t]*)?```", re.DOTALL)
PYTHON = ("python", "python3", "py")

# Runs the program, then each test in its names. A test's verdict is a line with a word that the program has not been
# told; what the program prints goes elsewhere.
CHECKER = """
import os, sys
word = sys.stdin.readline().strip()
told = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
names = {"__name__": "solution"}
exec(compile(open(os.path.join(sys.path[0], "solution.py")).read(), "solution.py", "exec"), names)
for i, test in enumerate(TESTS):
    try:
        exec(compile(test, "test", "exec"), names)
        verdict = 1
    except BaseException:
        verdict = 0
    told.write(f"{word} {i} {verdict}\\n")
    told.flush()
"""


def extract_program(text: str) -> str:
    r"""The last fenced block that is marked as Python, else the last fenced block, else the whole text.

    >>> extract_program("So:\n```python\nprint(1)\n```\nDone."), extract_program("print(2)")
    ('print(1)', 'print(2)')
    """
    blocks = FENCED.findall(text)
    marked = [body for language, body in blocks if language.lower() in PYTHON]
    return marked[-1] if marked else blocks[-1][1] if blocks else text


def tests_of(task: Task) -> list[str | dict[str, str]]:
    """`task.info["tests"]`: statements that must not raise (`assert f(2) == 4`) or {"stdin", "stdout"} cases."""
    tests = task.info.get("tests")
    if not isinstance(tests, Sequence) or isinstance(tests, str) or not tests:
        raise ValueError(f"task {task.id} has no info['tests']: a list of asserts or of {{stdin, stdout}} cases")
    out: list[str | dict[str, str]] = []
    for test in tests:
        if isinstance(test, Mapping) and isinstance(test.get("stdout"), str):
            out.append({"stdin": str(test.get("stdin", "")), "stdout": test["stdout"]})
        elif isinstance(test, str):
            out.append(test)
        else:
            raise ValueError(f"task {task.id}: a test is a statement or {{stdin, stdout}}, not {test!r}")
    return out


class Broken(Exception):
    """The sandbox could not run a program."""


def passed(program: str, tests: Sequence[str | Mapping[str, str]], sandbox: Sandbox, limits: Limits) -> list[bool]:
    """Which tests the program passes; `Broken` where the sandbox fails.

    Statements are run after the program, in its names and in one process, in order: a program that ends, hangs or runs
    out of time there fails the tests that have not been reached. A {"stdin", "stdout"} case is a run of its own, passed
    where it ends with exit code 0 and prints `stdout`, white space at the ends of lines and of the text left out.
    """
    out = [False] * len(tests)
    statements = [i for i, test in enumerate(tests) if isinstance(test, str)]
    if statements:
        word = secrets.token_hex(16)
        checker = f"TESTS = {[tests[i] for i in statements]!r}\n{CHECKER}"
        files = {PROGRAM: checker, "solution.py": program}
        result = sandbox.run(files, word + "\n", limits)
        if result.status == "broken":
            raise Broken(result.stderr)
        for line in result.stdout.splitlines():
            said = line.split()
            if len(said) == 3 and said[0] == word and said[2] == "1":
                out[statements[int(said[1])]] = True
    for i, test in enumerate(tests):
        if not isinstance(test, str):
            result = sandbox.run({PROGRAM: program}, test["stdin"], limits)
            if result.status == "broken":
                raise Broken(result.stderr)
            out[i] = result.status == "ok" and _lines(result.stdout) == _lines(test["stdout"])
    return out


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


@dataclass(eq=False)
class CodeReward:
    """Whether the program in a text passes `task.info["tests"]` (see `tests_of`), put where `task.info["template"]`, if
    there is one, says `{program}`.

    correct  1 where all tests pass, else 0: the reward;   tests  the share that passes: recorded, counted if named

    sandbox    "local" (`Local`), "docker" (`Docker`) or a `Sandbox`
    image, runtime  of docker;   packages  the local sandbox finds installed packages, too
    wall, cpu, memory_mb, processes   `Limits` of one run
    workers    programs that run at a time

    A wrong program, one that crashes and one that is ended for its time, memory or output have 0 for the tests that it
    did not pass: that is the policy's doing. A sandbox that can't run programs leaves the attempt unscored, and is
    counted; so does a task without tests. Equal programs for one task are run once a step. Statements are run in the
    program's own process, which can look at them and tamper with the checker; {"stdin", "stdout"} cases are compared
    outside: prefer them where cheating is to be feared.
    """

    sandbox: str | Sandbox = "local"
    image: str = Docker.image
    runtime: str | None = None
    packages: bool = False
    wall: float = 5.0
    cpu: int = 5
    memory_mb: int = 512
    processes: int = 16
    workers: int = 2
    _checked: bool = field(default=False, init=False, repr=False)
    _failures: list[Failure] = field(default_factory=list, init=False, repr=False)

    name = "code"
    gives = ("correct", "tests")
    reports = ("tests",)

    def __post_init__(self) -> None:
        if self.sandbox == "local":
            self._sandbox: Sandbox = Local(packages=self.packages)
        elif self.sandbox == "docker":
            self._sandbox = Docker(self.image, self.runtime)
        elif isinstance(self.sandbox, str):
            raise ConfigError(f"scoring.options.code.sandbox is 'local' or 'docker', not {self.sandbox!r}")
        else:
            self._sandbox = self.sandbox
        self._limits = Limits(self.wall, self.cpu, self.memory_mb << 20, self.processes)
        if self.workers < 1:
            raise ConfigError(f"scoring.options.code.workers must be at least 1, not {self.workers!r}")

    def failures(self) -> list[Failure]:
        """What went wrong since this was last asked, a trajectory each."""
        found, self._failures = self._failures, []
        return found

    def __call__(self, forest: Forest, texts: Sequence[str], tasks: Sequence[Task]) -> dict[str, Tensor]:
        self._check()
        places: dict[tuple[str, str], list[int]] = {}
        jobs: dict[tuple[str, str], list[str | dict[str, str]]] = {}
        share = torch.full((len(texts),), torch.nan, dtype=torch.float64)
        for r, (text, task) in enumerate(zip(texts, tasks, strict=True)):
            try:
                tests = tests_of(task)
            except ValueError as error:
                self._failures.append(("nonsense", str(error)))
                continue
            template = str(task.info.get("template", "{program}"))
            job = template.replace("{program}", extract_program(text)), json.dumps(tests)
            places.setdefault(job, []).append(r)
            jobs[job] = tests
        with ThreadPoolExecutor(self.workers) as threads:
            runs = {
                job: threads.submit(passed, job[0], tests, self._sandbox, self._limits) for job, tests in jobs.items()
            }
        for job, run in runs.items():
            try:
                verdicts = run.result()
            except Broken as error:
                self._failures += [("died", f"the sandbox can't run programs: {error}")] * len(places[job])
                continue
            share[torch.tensor(places[job])] = sum(verdicts) / len(verdicts)
        return {"correct": torch.where(share.isnan(), share, (share >= 1).to(torch.float64)), "tests": share}

    def _check(self) -> None:
        """Before the first program: can it be run, and how far is it shut off?"""
        if self._checked:
            return
        self._sandbox.check()
        if isinstance(self._sandbox, Local):
            held = vars(self._sandbox.held())
            missing = [name for name, holds in held.items() if not holds]
            if missing:
                warnings.warn(
                    f"the local sandbox does not hold {', '.join(missing)} here (see gxpo.rewards.sandbox.Local): "
                    "what a program does there is not contained; scoring.options.code.sandbox=docker contains it",
                    stacklevel=2,
                )
        self._checked = True
