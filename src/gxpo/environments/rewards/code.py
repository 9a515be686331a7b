"""Code reward: run the policy's program against the task's unit tests, in a sandbox."""

from __future__ import annotations

import ast
import builtins
import json
import re
import secrets
import symtable
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from gxpo.base.errors import ConfigError
from gxpo.base.usercode import described
from gxpo.environments.rewards.base import Failure
from gxpo.environments.rewards.docker import Docker
from gxpo.environments.rewards.sandbox import PROGRAM, TESTER_MODULES, Limits, Local, Sandbox, module_source
from gxpo.environments.rewards.wire import Writer

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import Task


# ---------------------------------------------------------------- names in test statements
ALIASES = {"np": "numpy", "pd": "pandas"}  # as data sets name them without an import
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)


class Names(NamedTuple):
    """Free names of tests: `program`, names of the tested program; `modules`, modules used without an import."""

    program: list[str]
    modules: dict[str, str]


@lru_cache(maxsize=256)
def names_of(statements: tuple[str, ...]) -> Names:
    """Free names of test statements: those that they use and do not define.

    What they define or import themselves is theirs, and so are Python's own functions and, where only attributes of it
    are used, a module of the standard library: a program decides nothing by defining `abs` or `math`. If nothing else
    is left, as in `assert sum(10, 15) == 25`, the one function that is called is the program's.

    ValueError where they only define things, so that any program would pass.
    """
    trees = [tree for text in statements if (tree := _parse_statement(text)) is not None]
    if trees and all(isinstance(x, DEFINITIONS) or _is_text(x) for tree in trees for x in tree.body):
        raise ValueError("its tests define functions and call none: any program would pass")
    # A name that is used only as in `math.sqrt` may be a module; one that also stands by itself is not.
    nodes = [node for tree in trees for node in ast.walk(tree)]
    attribute_bases = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    bare_names = {node.id for node in nodes if isinstance(node, ast.Name) and id(node) not in attribute_bases}
    # Scopes by symtable: a name that a function of the tests binds is local to it, unless declared global.
    used_names, defined_names = set[str](), set[str]()
    for text in statements:
        for table in _tables(text):
            for symbol in table.get_symbols():
                at_top = table.get_type() == "module" or symbol.is_declared_global()
                if at_top and (symbol.is_assigned() or symbol.is_imported()):
                    defined_names.add(symbol.get_name())
                elif symbol.is_global() or table.get_type() == "module":
                    used_names.add(symbol.get_name())
    free_names = used_names - defined_names
    modules = {name: ALIASES.get(name, name) for name in free_names - bare_names if _is_module(name)}
    program = {name for name in free_names if not hasattr(builtins, name)} - modules.keys()
    # No name is left where the program redefines a built-in, as `sum`: then the one function that is called is meant.
    if not program:
        called_names = {
            node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        program = called_names & free_names if len(called_names & free_names) == 1 else set()
    return Names(sorted(program), modules)


def _parse_statement(text: str) -> ast.Module | None:
    """Parse a statement; None where this Python can't, as the sandbox's may."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _tables(text: str) -> Iterator[symtable.SymbolTable]:
    """Symbol tables of a statement and of all scopes in it."""
    try:
        pending = [symtable.symtable(text, "tests", "exec")]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    while pending:
        yield (table := pending.pop())
        pending += table.get_children()


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_module(name: str) -> bool:
    return name in ALIASES or name in sys.stdlib_module_names


# ---------------------------------------------------------------- the reward
LANGUAGE = re.compile(r"[A-Za-z0-9_+-]*")
PYTHON = ("python", "python3", "py")
FENCE = "```"


def extract_program(text: str) -> str:
    r"""Extract the last fenced Python block, else the last fenced block, else the whole text.

    >>> extract_program("So:\n```python\nprint(1)\n```\nDone."), extract_program("print(2)")
    ('print(1)', 'print(2)')
    """
    blocks = list(_blocks(text))
    marked = [body for language, body in blocks if language in PYTHON]
    return marked[-1] if marked else blocks[-1][1] if blocks else text


def _blocks(text: str) -> Iterator[tuple[str, str]]:
    """Language and body of each fenced block, in linear time for any text."""
    position = 0
    while (fence := text.find(FENCE, position)) >= 0:
        # By find and not by a regular expression, whose backtracking a policy could exploit.
        begin = text.find("\n", fence)
        end = text.find(FENCE, begin + 1)
        if begin < 0 or end < 0:
            return
        head = text[fence + len(FENCE) : begin].lstrip(" \t")
        language = LANGUAGE.match(head)
        # The blanks before an indented closing fence are no part of the program.
        body, line, indent = text[begin + 1 : end].rpartition("\n")
        if not line or indent.strip(" \t"):
            body += line + indent
        yield language[0].lower() if language else "", body
        position = end + len(FENCE)


def tests_of(task: Task) -> list[str | dict[str, str]]:
    """Unit tests, `task.info["tests"]`: statements that must not raise (`assert f(2) == 4`) or {"stdin", "stdout"}."""
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
    # Checked before any program runs: tests that any program passes would pay for nothing.
    try:
        names_of(_statements(out))
    except ValueError as error:
        raise ValueError(f"task {task.id}: {error}") from error
    return out


def _statements(tests: Sequence[str | Mapping[str, str]]) -> tuple[str, ...]:
    return tuple(test for test in tests if isinstance(test, str))


class Broken(Exception):
    """The sandbox could not run a program."""


def passed(program: str, tests: Sequence[str | Mapping[str, str]], sandbox: Sandbox, limits: Limits) -> list[bool]:
    """Verdicts of a program on its tests, in order; `Broken` where the sandbox fails.

    Statements are run in order, with names of their own and the program's functions, by a process that the program is
    not in (`rewards.harness`): a program that ends, hangs or runs out of time fails the tests that have not been
    reached. A {"stdin", "stdout"} case is a run of its own, passed where it ends with exit code 0 and prints `stdout`,
    white space at the ends of lines and of the text left out.
    """
    statements = _statements(tests)
    # All statements in one run: starting a sandbox takes longer than most tests.
    verdicts = iter(_verdicts(program, statements, sandbox, limits) if statements else ())
    out = []
    for test in tests:
        if isinstance(test, str):
            out.append(next(verdicts))
            continue
        result = sandbox.run({PROGRAM: program}, test["stdin"], limits)
        if result.status == "broken":
            raise Broken(result.stderr)
        # Blanks at the ends of lines differ between platforms, and mean nothing.
        out.append(result.status == "ok" and _lines(result.stdout) == _lines(test["stdout"]))
    return out


def _verdicts(program: str, statements: tuple[str, ...], sandbox: Sandbox, limits: Limits) -> list[bool]:
    """Verdicts on test statements, all run in one sandbox."""
    # The secret word begins each verdict, so that a program can't print verdicts of its own.
    names, word = names_of(statements), secrets.token_hex(16)
    payload = Writer(repr).text((list(statements), names.program, names.modules))
    # Room for the tester's own process, and for a line of each verdict.
    limits = replace(limits, processes=limits.processes + 1, output=limits.output + 64 * len(statements))
    files = {PROGRAM: "import harness\nharness.main()\n", "solution.py": program} | {
        f"{n}.py": module_source(n) for n in TESTER_MODULES
    }
    result = sandbox.run(files, f"{word}\n{payload}", limits)
    lines = [line.split() for line in result.stdout.splitlines()]
    if result.status == "broken" or ["ready"] not in lines or (lines[0] and lines[0][0] == "error"):
        raise Broken(result.stderr.strip() or result.stdout.strip() or "the tests could not be started")
    return [[word, str(i), "1"] in lines for i in range(len(statements))]


def _lines(text: str) -> list[str]:
    """Lines of an output for comparison, without white space at their ends and the text's."""
    return [line.rstrip() for line in text.rstrip().splitlines()]


@dataclass(eq=False)
class CodeReward:
    """Code reward: the program in a text passes `task.info["tests"]` (see `tests_of`). `task.info["template"]`,
    if there is one, has it in place of `{program}`.

    correct  1 where all tests pass, else 0: the reward;   tests  the share that passes: recorded, counted if named

    sandbox    "local" (`Local`), "docker" (`Docker`) or a `Sandbox`
    image, runtime      of docker
    packages, readable  of the local sandbox: whether programs find installed packages; what else they may read
    wall, cpu, memory_mb, processes   `Limits` of one run
    workers    programs that run at a time

    A wrong program, one that crashes and one that is ended for its time, memory, files or output have 0 for the tests
    that they did not pass: that is the policy's doing. A sandbox that can't run programs leaves the attempt unscored,
    and is counted; so does a task without tests. Equal programs for one task are run once a step. A program sees
    neither tests nor expected values, and compares nothing (see `passed`); `Local` says what else it could read.
    """

    sandbox: str | Sandbox = "local"
    image: str = Docker.image
    runtime: str | None = None
    packages: bool = False
    readable: Sequence[str] = ()
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
        if isinstance(self.readable, str) or not all(isinstance(path, str) for path in self.readable):
            raise ConfigError(f"scoring.options.code.readable is a list of paths, not {self.readable!r}")
        if self.sandbox == "local":
            self._sandbox: Sandbox = Local(packages=self.packages, readable=tuple(self.readable))
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
        """Return and clear the failures since the last call, one per trajectory."""
        collected, self._failures = self._failures, []
        return collected

    def __call__(self, forest: Forest, texts: Sequence[str], tasks: Sequence[Task]) -> dict[str, Tensor]:
        """Run the programs of a step: verdicts and shares of passed tests, [R], nan where one could not be run."""
        self._check()
        # Equal programs for one task are one job.
        rows_by_job: dict[tuple[str, str], list[int]] = {}
        tests_by_job: dict[tuple[str, str], list[str | dict[str, str]]] = {}
        pass_share_R = torch.full((len(texts),), torch.nan, dtype=torch.float64)
        for r, (text, task) in enumerate(zip(texts, tasks, strict=True)):
            try:
                tests = tests_of(task)
            except ValueError as error:
                self._failures.append(("nonsense", str(error)))
                continue
            template = str(task.info.get("template", "{program}"))
            job = template.replace("{program}", extract_program(text)), json.dumps(tests)
            rows_by_job.setdefault(job, []).append(r)
            tests_by_job[job] = tests
        # Threads suffice: each waits for a sandbox in processes of its own.
        with ThreadPoolExecutor(self.workers) as threads:
            runs = {
                job: threads.submit(passed, job[0], tests, self._sandbox, self._limits)
                for job, tests in tests_by_job.items()
            }
        for job, run in runs.items():
            try:
                verdicts = run.result()
            except Broken as error:
                self._failures += [("died", f"the sandbox can't run programs: {error}")] * len(rows_by_job[job])
                continue
            except Exception as error:  # it costs only the rollouts with this program
                self._failures += [("raised", described(error, "running a program"))] * len(rows_by_job[job])
                continue
            pass_share_R[torch.tensor(rows_by_job[job])] = sum(verdicts) / len(verdicts)
        return {
            "correct": torch.where(pass_share_R.isnan(), pass_share_R, (pass_share_R >= 1).to(torch.float64)),
            "tests": pass_share_R,
        }

    def _check(self) -> None:
        """Check the sandbox and warn of missing isolation, before the first program."""
        if self._checked:
            return
        self._sandbox.check()
        # Docker isolates always; what the local sandbox holds depends on the kernel.
        if isinstance(self._sandbox, Local):
            isolation = vars(self._sandbox.isolation())
            missing = [name for name, holds in isolation.items() if not holds]
            if missing:
                warnings.warn(
                    f"the local sandbox does not hold {', '.join(missing)} here (see rewards.sandbox.Local): "
                    "what a program does there is not contained; scoring.options.code.sandbox=docker contains it",
                    stacklevel=2,
                )
        self._checked = True
