"""Code tasks: write a small expression for a described function, tested on hidden values."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from gxpo.base.errors import TaskError
from gxpo.environments.tasks.source import Author, GeneratedTasks, check_options, exact
from gxpo.parts.protocols import Task

HIDDEN = (-3, 0, 5, 11)  # values of x that a program is tried on; none of them is shown
SHOWN = (1, 2, 3, 4, 6, 7, 8, 9)
LONGEST = 64  # characters of an expression that `evaluate` looks at


class NotAnExpression(ValueError):
    """The text is not an expression of x, whole numbers, + - * and parentheses."""


def evaluate(text: str, x: int) -> int:
    """Evaluate a small expression in x by walking its syntax tree; nothing is executed.

    >>> evaluate("3*x+(1-2)", 5)
    14
    """

    def value(node: ast.AST) -> int:
        if isinstance(node, ast.Name) and node.id == "x":
            return x
        # not True or False, which are ints to isinstance
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -value(node.operand)
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub, ast.Mult)):
            left, right = value(node.left), value(node.right)
            return left + right if isinstance(node.op, ast.Add) else (
                left - right if isinstance(node.op, ast.Sub) else left * right
            )  # fmt: skip
        raise NotAnExpression(f"{text!r} holds more than x, whole numbers, + - * and parentheses")

    # the parser's depth and the size of products grow with the text, which a policy writes
    if len(text) > LONGEST:
        raise NotAnExpression(f"longer than {LONGEST} characters")
    try:
        return value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise NotAnExpression(f"{text!r} is no expression") from error


def score(text: str, task: Task) -> dict[str, float]:
    """Score an expression. `format`: `evaluate` can read it. `correct`: with the right values at the tested points.

    For warm starts, where nothing is run. In training the reward `code` runs the program and says what is correct.

    >>> score("x*2+1", Task("", "", "2*x+1", {"slope": 2, "offset": 1}))
    {'correct': 1.0, 'format': 1.0}
    """
    try:
        values = [evaluate(text, x) for x in HIDDEN]
    except NotAnExpression:
        return {"correct": 0.0, "format": 0.0}
    targets = [task.info["slope"] * x + task.info["offset"] for x in HIDDEN]
    return {"correct": float(values == targets), "format": 1.0}


def expression(slope: int, offset: int) -> str:
    """Usual spelling of slope * x + offset.

    >>> [expression(a, b) for a, b in ((0, 7), (1, 0), (1, 4), (3, 0), (3, 4))]
    ['7', 'x', 'x+4', '3*x', '3*x+4']
    """
    if slope == 0:
        return str(offset)
    term = "x" if slope == 1 else f"{slope}*x"
    return f"{term}+{offset}" if offset else term


@dataclass
class Code(GeneratedTasks):
    """A function slope * x + offset, described by two of its values or in words; hidden values test it.

    style   "bare": `f(2)=7,f(4)=13:` wants an expression, `3*x+1`, for a policy of single characters; an
            instruction-tuned policy is asked for a function `f` in a code block, told what it returns ("words") or two
            of its values alone ("values", which is much harder)
    slope, offset  the largest there are

    `info["tests"]` are asserts on values of x that are not shown; `info["template"]` makes a function of a bare
    expression. The reward is `code`, which runs what was written in a sandbox. Two tasks that show the same values are
    the same; the function behind them may be met on both sides of the split.
    """

    seed: int = 0
    style: str = "bare"
    slope: int = 3
    offset: int = 9

    name: ClassVar[str] = "code"
    scorer_name: ClassVar[str] = "code"
    scorer_trusted: ClassVar[bool] = True
    scorer: ClassVar = staticmethod(score)
    reward_default = "code"
    options: ClassVar[Mapping[str, Any]] = {"style": str, "slope": int, "offset": int}

    def __post_init__(self) -> None:
        check_options(self.name, {name: getattr(self, name) for name in self.options}, self.options)
        if self.style not in ("bare", "words", "values"):
            raise TaskError(f"task 'code': style is 'bare', 'words' or 'values', not {self.style!r}")
        for name, most in (("slope", self.slope), ("offset", self.offset)):
            if not 0 <= most <= 99:
                raise TaskError(f"task 'code': {name} must be from 0 to 99, not {most}")
        if self.style != "bare":
            self.scorer = None  # type: ignore[misc]  # nothing but running it tells whether a function is right

    def propose(self, random: np.random.Generator) -> Task:
        slope, offset = int(random.integers(self.slope + 1)), int(random.integers(self.offset + 1))
        # two points of a line: they determine the function, which the hidden values test elsewhere
        first, second = sorted(int(x) for x in random.choice(SHOWN, size=2, replace=False))
        examples = [f"f({x})={slope * x + offset}" for x in (first, second)]
        question = ",".join(examples)
        info: dict[str, Any] = {
            "slope": slope,
            "offset": offset,
            "tests": [f"assert f({x}) == {slope * x + offset}" for x in HIDDEN],
        }
        prompt = f"{question}:"
        if self.style == "bare":
            info["template"] = "f = lambda x: ({program})"
        else:
            in_words = self.style == "words"
            description = f" that returns {_in_words(slope, offset)}" if in_words else " that is linear in x"
            example = "For example" if in_words else "It has the values"
            prompt = (
                f"Write a Python function f(x){description}. {example} {examples[0]} and {examples[1]}. "
                "Answer with a Python code block and nothing else."
            )
        return Task(f"code/{self.style}/{question}", prompt, expression(slope, offset), info)

    def worked_example(self, task: Task, author: Author = exact) -> str:
        """Expression with the numbers that `author` writes, in chat styles within a code block."""
        slope, offset = (author(f"{name} {task.info[name]}", task.info[name]) for name in ("slope", "offset"))
        program = expression(slope, offset)
        return program if self.style == "bare" else f"```python\ndef f(x):\n    return {program}\n```"


def _in_words(slope: int, offset: int) -> str:
    if slope == 0:
        return f"the number {offset}, whatever x is"
    term = "x" if slope == 1 else f"{slope} times x"
    return f"{term} plus {offset}" if offset else term
