"""Countdown tasks: reach a target from a few numbers with + - * /."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np

from gxpo.base.errors import TaskError
from gxpo.environments.tasks.source import Author, GeneratedTasks, check_options, exact
from gxpo.parts.protocols import Task

WELL_FORMED = re.compile(r"[^#]*#([0-9+\-*/() ]+)")
TOKEN = re.compile(r" *([0-9]+|[-+*/()])")
LONGEST = 200  # characters of an expression that are looked at; keeps the parser's depth bounded


class NotAnExpression(ValueError):
    """The text is not an expression of numbers, + - * / and parentheses, or divides by zero."""


def evaluate(text: str) -> tuple[Fraction, Counter[int]]:
    """Evaluate an arithmetic expression exactly, and count its numbers; nothing is executed.

    No signs before a number, no powers; `*` and `/` before `+` and `-`, each from left to right.

    >>> evaluate("(3+4)/2")
    (Fraction(7, 2), Counter({3: 1, 4: 1, 2: 1}))
    """
    if len(text) > LONGEST:
        raise NotAnExpression(f"longer than {LONGEST} characters")
    # tokens first: what is left over between them is no arithmetic
    text = text.rstrip(" ")
    tokens, position = [], 0
    while position < len(text):
        match = TOKEN.match(text, position)
        if match is None:
            raise NotAnExpression(f"unexpected {text[position]!r}")
        tokens.append(match[1])
        position = match.end()
    numbers: Counter[int] = Counter()
    tokens.reverse()  # the next token is at the end

    # recursive descent, a function for each level of precedence
    def atom() -> Fraction:
        token = tokens.pop() if tokens else ""
        if token == "(":
            value = total()
            if not tokens or tokens.pop() != ")":
                raise NotAnExpression("a parenthesis is not closed")
            return value
        if not token.isdigit():
            raise NotAnExpression(f"a number is missing before {token!r}")
        numbers[int(token)] += 1
        return Fraction(int(token))

    def product() -> Fraction:
        value = atom()
        while tokens and tokens[-1] in "*/":
            if tokens.pop() == "*":
                value *= atom()
            else:
                divisor = atom()
                if divisor == 0:
                    raise NotAnExpression("division by zero")
                value /= divisor
        return value

    def total() -> Fraction:
        value = product()
        while tokens and tokens[-1] in "+-":
            value = value + product() if tokens.pop() == "+" else value - product()
        return value

    value = total()
    # "(1+2" and "1 2": a sum that ends before the text does
    if tokens:
        raise NotAnExpression(f"unexpected {tokens[-1]!r}")
    return value, numbers


def score(text: str, task: Task) -> dict[str, float]:
    """Score an answer. `format`: any working, one `#`, then an expression. `correct`: it has the target's value and
    uses each given number at most once (with `use_all`: exactly once). Any such expression scores.

    >>> score("#(7-3)*2", Task("", "", "(7-3)*2", {"numbers": [2, 3, 7], "target": 8, "use_all": True}))
    {'correct': 1.0, 'format': 1.0}
    """
    match = WELL_FORMED.fullmatch(text.strip())
    if match is None:
        return {"correct": 0.0, "format": 0.0}
    try:
        value, used_numbers = evaluate(match[1])
    except NotAnExpression:
        return {"correct": 0.0, "format": 0.0}
    available = Counter(task.info["numbers"])  # a number given twice may be used twice
    is_allowed = used_numbers == available if task.info["use_all"] else used_numbers <= available
    return {"correct": float(is_allowed and value == task.info["target"]), "format": 1.0}


def worked_example(task: Task, author: Author = exact) -> str:
    """Working and answer: each operation's value from the inside out, as `author` gives it, then the expression.

    >>> worked_example(Task("", "3,7,2=8:", "(7-3)*2", {"steps": [(7, "-", 3, 4), (4, "*", 2, 8)]}))
    '7-3=4,4*2=8#(7-3)*2'
    """
    lines = []
    for left, operation, right, value in task.info["steps"]:
        question = f"{left}{operation}{right}"
        lines.append(f"{question}={author(question, value)}")
    return ",".join(lines) + f"#{task.answer}"


@dataclass
class Countdown(GeneratedTasks):
    """`3,7,2=8:` -> an expression: `count` numbers from 1 to `maximum` and a target they can reach.

    A task is made by joining the numbers one after the other, so it always has a solution; values on the way are never
    negative and never fractions, though an answer may have either. With `use_all` every number must be used.
    """

    seed: int = 0
    count: int = 3
    maximum: int = 12
    operations: str = "+-*"
    use_all: bool = True

    name: ClassVar[str] = "countdown"
    scorer_name: ClassVar[str] = "countdown"
    scorer_trusted: ClassVar[bool] = True
    scorer: ClassVar = staticmethod(score)
    options: ClassVar[Mapping[str, Any]] = {"count": int, "maximum": int, "operations": str, "use_all": bool}

    def __post_init__(self) -> None:
        check_options(self.name, {name: getattr(self, name) for name in self.options}, self.options)
        if not 2 <= self.count <= 8:
            raise TaskError(f"task 'countdown': count must be from 2 to 8, not {self.count}")
        if not 2 <= self.maximum <= 1000:
            raise TaskError(f"task 'countdown': maximum must be from 2 to 1000, not {self.maximum}")
        if not set(self.operations) & set("+-*") or set(self.operations) - set("+-*/"):
            wrong = f"not {self.operations!r}"
            raise TaskError(
                f"task 'countdown': operations must be some of '+-*/', with one of '+-*' among them, {wrong}"
            )

    def propose(self, random: np.random.Generator) -> Task:
        # forwards from the numbers to the target, so that every task has a solution
        numbers = [int(x) for x in random.integers(1, self.maximum + 1, size=self.count)]
        value, expression, steps = numbers[0], str(numbers[0]), []
        for number in numbers[1:]:
            left, operation, right, result = self._join(value, number, random)
            term = expression if not steps else f"({expression})"
            # the number may be on the left: 9-(2+3)
            expression = f"{term}{operation}{number}" if left == value else f"{number}{operation}{term}"
            steps.append((left, operation, right, result))
            value = result
        # in another order: the order of the prompt must not give away that of the solution
        order = [numbers[int(i)] for i in random.permutation(self.count)]
        question = f"{','.join(map(str, order))}={value}"
        info = {"numbers": order, "target": value, "use_all": self.use_all, "steps": steps}
        return Task(f"countdown/{question}", f"{question}:", expression, info)

    def _join(self, value: int, number: int, random: np.random.Generator) -> tuple[int, str, int, int]:
        """Random operation on `value` and `number` whose result is a non-negative integer."""
        high, low = max(value, number), min(value, number)
        possible = [
            (value, "+", number, value + number),
            (high, "-", low, high - low),
            (value, "*", number, value * number),
        ]
        if low > 0 and high % low == 0:
            possible.append((high, "/", low, high // low))
        possible = [step for step in possible if step[1] in self.operations]
        return possible[int(random.integers(len(possible)))]

    def content(self, task: Task) -> str:
        return f"{sorted(task.info['numbers'])}={task.info['target']}"

    def worked_example(self, task: Task, author: Author = exact) -> str:
        return worked_example(task, author)
