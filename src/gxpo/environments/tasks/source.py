"""Base of task generators (keyed random streams, a held-out split by content), and arithmetic, the demo's source."""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from gxpo.base.errors import TaskError, did_you_mean
from gxpo.parts.protocols import Task

if TYPE_CHECKING:
    import numpy as np

    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import Task


Scorer = Callable[[str, Task], Mapping[str, float]]

Author = Callable[[str, int], int]  # (question, its value) -> what a writer of worked examples puts down

TRAINING, HELD_OUT = 0, 1  # first word of a stream's key
HELD_OUT_SHARE = 4  # one content in four is held out
FRUITLESS = 256  # proposals in a row after which a generator counts as having nothing new


def exact(question: str, value: int) -> int:
    """Author of worked examples that makes no mistakes."""
    return value


def stream(*key: int) -> np.random.Generator:
    """Random generator that depends on nothing but `key` (non-negative integers)."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(key)))


def fraction_of(content: str) -> float:
    """Hash `content` to [0, 1), independent of seed, machine and version."""
    digest = hashlib.blake2b(content.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def is_reserved(content: str) -> bool:
    """Return True if tasks of this content are held out; all others are for training and warm-up."""
    return fraction_of(content) < 1 / HELD_OUT_SHARE


def solution_of(source: Any, task: Task) -> str | None:
    """Worked solution of a task: `info["solution"]`, else the one that its source writes; None without either."""
    if "solution" in task.info:
        return task.info["solution"]
    # a user's source is any object with `draw` and `held_out`: it may have no `worked_example`
    write = getattr(source, "worked_example", None)
    return None if write is None else write(task)


def check_options(task: str, options: Mapping[str, Any], types: Mapping[str, type | tuple[type, ...]]) -> None:
    """Raise TaskError for an option that `task` does not have, or of the wrong type."""
    for name, value in options.items():
        if name not in types:
            raise TaskError(f"task {task!r} has no option {name!r}{did_you_mean(name, types)}")
        kind = types[name]
        expected = kind if isinstance(kind, tuple) else (kind,)
        # True is an int to Python, and would pass as a number of digits
        if not isinstance(value, expected) or (isinstance(value, bool) and bool not in expected):
            type_names = " or ".join(t.__name__ for t in expected)
            raise TaskError(f"task {task!r}: option {name!r} must be {type_names}, not {value!r}")


class GeneratedTasks(ABC):
    """Base of sources that generate tasks at random; they have no state.

    Task `i` of a step comes from the stream (seed, step, i), so `draw(n, step)` is the beginning of `draw(m, step)` for
    n <= m: to get more tasks in a step, draw a longer list and take its end. Held-out tasks are the same for every
    seed. Training and held-out tasks differ in content: a quarter of all contents, chosen by their hash, is reserved.
    """

    name: str
    seed: int
    scorer_name: str
    scorer: Scorer
    reward_default = "correct"

    @abstractmethod
    def propose(self, random: np.random.Generator) -> Task:
        """Generate a task, of any content, with its `id` and `info`."""

    def content(self, task: Task) -> str:
        """Content by which tasks are the same to a learner; equal contents are always on one side of the split."""
        return task.id

    def draw(self, n: int, step: int) -> list[Task]:
        """Draw `n` training tasks, distinct unless the generator has too few."""
        tasks: list[Task] = []
        used_ids: set[str] = set()
        # a stream of its own for each place: the i-th task does not depend on how many are drawn
        for i in range(n):
            tasks.append(self._next(stream(TRAINING, self.seed, step, i), held_out=False, used_ids=used_ids))
            used_ids.add(tasks[-1].id)
        return tasks

    def held_out(self, n: int) -> list[Task]:
        """Up to `n` held-out tasks with distinct ids; fewer if the generator has fewer."""
        tasks: dict[str, Task] = {}
        random = stream(HELD_OUT)
        # no seed in the key: runs of different seeds are evaluated on the same tasks
        while len(tasks) < n:
            task = self._next(random, held_out=True, used_ids=tasks.keys())
            if task.id in tasks:
                break
            tasks[task.id] = task
        return list(tasks.values())

    def _next(self, random: np.random.Generator, *, held_out: bool, used_ids: Collection[str]) -> Task:
        """Propose until a task is on the right side of the split and new; a repeated one where none is new."""
        repetition = None
        for _ in range(FRUITLESS * HELD_OUT_SHARE):
            task = self.propose(random)
            if is_reserved(self.content(task)) != held_out:
                continue
            if task.id not in used_ids:
                return task
            repetition = task
        if repetition is None:
            side = "held-out" if held_out else "training"
            raise TaskError(f"task {self.name!r} with these options has no {side} tasks: make it harder")
        return repetition

    def observe(self, forest: Forest) -> None:  # noqa: B027  # most sources have nothing to remember
        """Does nothing: results don't change the tasks."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            raise TaskError(f"task {self.name!r} keeps no state, but the checkpoint holds {sorted(state)}")


# ---------------------------------------------------------------- arithmetic
# the working may hold mistakes, or nothing: only its characters are checked
WELL_FORMED = re.compile(r"[0-9+\-*=,]*#([0-9]+)")


def score(text: str, task: Task) -> dict[str, float]:
    """Score an answer. `format`: any working, then one `#` and the result, nothing after. `correct`: and it is right.

    The working itself is not judged. The result must be written as usual: no sign, no leading zeros.

    >>> score("7+8=15,3+4+1=8#85", Task("", "37+48=", "85"))
    {'correct': 1.0, 'format': 1.0}
    """
    match = WELL_FORMED.fullmatch(text.strip())
    return {"correct": float(match is not None and match[1] == task.answer), "format": float(match is not None)}


def worked_example(task: Task, author: Author = exact) -> str:
    """The answer with its working: sums and differences column by column from the right, products digit by digit.

    Each line of the working is a question (`7+8`) that `author` answers, knowing its value; the next lines and the
    result go on from what was written, so a wrong line gives a wrong result.

    >>> worked_example(Task("", "37+48=", "85", {"a": 37, "operation": "+", "b": 48}))
    '7+8=15,3+4+1=8#85'
    >>> worked_example(Task("", "52-48=", "4", {"a": 52, "operation": "-", "b": 48}))
    '12-8=4,5-4-1=0#4'
    >>> worked_example(Task("", "37*48=", "1776", {"a": 37, "operation": "*", "b": 48}))
    '37*8=296,37*40=1480,296+1480=1776#1776'
    """
    a, operation, b = task.info["a"], task.info["operation"], task.info["b"]
    work = {"+": _sum, "-": _difference, "*": _product}[operation]
    return work(a, b, author)


def _digit(number: int, column: int) -> int:
    return number // 10**column % 10


def _sum(a: int, b: int, author: Author) -> str:
    """Column by column from the right, with the carry."""
    lines, result, carry = [], 0, 0
    columns = max(len(str(a)), len(str(b)))
    for column in range(columns):
        p, q = _digit(a, column), _digit(b, column)
        question = f"{p}+{q}{'+1' if carry else ''}"
        answer = author(question, p + q + carry)
        lines.append(f"{question}={answer}")
        # from the author's answer, not from the true value: a mistake has to show in the result
        result += answer % 10 * 10**column
        carry = int(answer >= 10)
    return f"{','.join(lines)}#{result + carry * 10**columns}"


def _difference(a: int, b: int, author: Author) -> str:
    """Column by column from the right, a >= b, borrowing ten from the next column."""
    lines, result, carry = [], 0, 0
    for column in range(len(str(a))):
        p, q = _digit(a, column), _digit(b, column)
        borrow = int(p - carry < q)
        question = f"{p + 10 * borrow}-{q}{'-1' if carry else ''}"
        answer = author(question, p + 10 * borrow - q - carry)
        lines.append(f"{question}={answer}")
        result += answer % 10 * 10**column
        carry = borrow
    return f"{','.join(lines)}#{result}"


def _product(a: int, b: int, author: Author) -> str:
    """`a` times each digit of `b` from the right, added up on the way."""
    lines: list[str] = []
    total = 0
    for column in range(len(str(b))):
        factor = _digit(b, column) * 10**column
        part = author(f"{a}*{factor}", a * factor)
        lines.append(f"{a}*{factor}={part}")
        if column:
            question = f"{total}+{part}"
            part = author(question, total + part)
            lines.append(f"{question}={part}")
        total = part
    return f"{','.join(lines)}#{total}"


@dataclass
class Arithmetic(GeneratedTasks):
    """`37+48=` -> `85`: two numbers of `digits` digits each and one of `operations`.

    Differences have the larger number first. `a+b` and `b+a` have one content, so both are for training or both are
    held out.
    """

    seed: int = 0
    digits: int = 2
    operations: str = "+"

    name: ClassVar[str] = "arithmetic"
    scorer_name: ClassVar[str] = "arithmetic"
    scorer_trusted: ClassVar[bool] = True
    scorer: ClassVar = staticmethod(score)
    options: ClassVar[Mapping[str, Any]] = {"digits": int, "operations": str}

    def __post_init__(self) -> None:
        check_options(self.name, {"digits": self.digits, "operations": self.operations}, self.options)
        if not 1 <= self.digits <= 18:
            raise TaskError(f"task 'arithmetic': digits must be from 1 to 18, not {self.digits}")
        if not self.operations or set(self.operations) - set("+-*"):
            raise TaskError(f"task 'arithmetic': operations must be some of '+-*', not {self.operations!r}")

    def propose(self, random: np.random.Generator) -> Task:
        # of one digit 0 counts as well
        low = 10 ** (self.digits - 1) if self.digits > 1 else 0
        a, b = (int(x) for x in random.integers(low, 10**self.digits, size=2))
        operation = self.operations[int(random.integers(len(self.operations)))]
        if operation == "-":
            a, b = max(a, b), min(a, b)
        result = {"+": a + b, "-": a - b, "*": a * b}[operation]
        question = f"{a}{operation}{b}"
        info = {"a": a, "operation": operation, "b": b}
        return Task(f"arithmetic/{question}", f"{question}=", str(result), info)

    def content(self, task: Task) -> str:
        a, b = task.info["a"], task.info["b"]
        return f"{min(a, b)}{task.info['operation']}{max(a, b)}"

    def worked_example(self, task: Task, author: Author = exact) -> str:
        return worked_example(task, author)


class PicturedTasks(GeneratedTasks):
    """Base of sources whose tasks show one picture; a task's `info["number"]` is what it was made of.

    shuffled  the picture is another task's: what a policy reads in it, and not in the text, is then wrong
    """

    shuffled: bool

    @abstractmethod
    def numbered(self, number: int) -> Task:
        """Make the task of a number from 0 on, with its own picture."""

    def propose(self, random: np.random.Generator) -> Task:
        # the next number's picture: another task with probability near 1, and the same one on every machine
        task = self.numbered(int(random.integers(1 << 62)))
        return with_picture(task, picture_of(self.numbered(task.info["number"] + 1))) if self.shuffled else task


def picture_prompt(ref: str, text: str) -> tuple[Mapping[str, Any], ...]:
    """Prompt of one picture and a question."""
    return ({"role": "user", "content": [{"type": "image", "image": ref}, {"type": "text", "text": text}]},)


def picture_of(task: Task) -> str:
    """Reference of the picture in a prompt made by `picture_prompt`."""
    return _parts(task)[0]["image"]


def with_picture(task: Task, ref: str) -> Task:
    """Copy of a task with another picture and the same answer."""
    return replace(task, prompt=picture_prompt(ref, _parts(task)[1]["text"]))


def _parts(task: Task) -> Sequence[Mapping[str, Any]]:
    message: Any = task.prompt[0]
    return message["content"]
