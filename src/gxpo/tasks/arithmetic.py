"""Arithmetic tasks: sums, differences and products of two numbers, worked out digit by digit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from gxpo.errors import TaskError
from gxpo.protocols import Task
from gxpo.tasks.source import Author, GeneratedTasks, check_options, exact

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
    lines, result, carry = [], 0, 0
    columns = max(len(str(a)), len(str(b)))
    for column in range(columns):
        p, q = _digit(a, column), _digit(b, column)
        question = f"{p}+{q}{'+1' if carry else ''}"
        written = author(question, p + q + carry)
        lines.append(f"{question}={written}")
        result += written % 10 * 10**column
        carry = int(written >= 10)
    return f"{','.join(lines)}#{result + carry * 10**columns}"


def _difference(a: int, b: int, author: Author) -> str:
    lines, result, borrowed = [], 0, 0
    for column in range(len(str(a))):
        p, q = _digit(a, column), _digit(b, column)
        borrow = int(p - borrowed < q)
        question = f"{p + 10 * borrow}-{q}{'-1' if borrowed else ''}"
        written = author(question, p + 10 * borrow - q - borrowed)
        lines.append(f"{question}={written}")
        result += written % 10 * 10**column
        borrowed = borrow
    return f"{','.join(lines)}#{result}"


def _product(a: int, b: int, author: Author) -> str:
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
