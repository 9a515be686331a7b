"""Scores of reasoning-gym's answers: what its scorers evaluate is checked first, and wrong scorers are repaired.

An answer is a policy's text. Nine of the generators' scorers run it as Python (`eval`, or sympy's `parse_expr`, which
evaluates names and attributes): here they see literals and arithmetic alone. Four pay wrong answers in full and are
repaired. Many raise on an answer of another shape than they expect: that is a wrong answer.
"""

from __future__ import annotations

import ast
import copy
import functools
import importlib
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reasoning_gym.dataset import ProceduralDataset

Entry = Mapping[str, Any]

EVALUATED = {  # generators whose scorers call `eval` on the answer: the module, where literals take its place
    "binary_matrix": "algorithmic.binary_matrix",
    "n_queens": "games.n_queens",
    "spiral_matrix": "algorithmic.spiral_matrix",
    "string_insertion": "algorithmic.string_insertion",
}
PARSED = ("countdown", "intermediate_integration", "polynomial_multiplication", "puzzle24", "simple_integration")

LONGEST = 2000  # characters of an expression
DIGITS = 50  # of a number in one
POWER = 1000  # product of the exponents that stand on each other
FUNCTIONS = frozenset({
    "Abs", "acos", "acosh", "acot", "asin", "asinh", "atan", "atanh", "cos", "cosh", "cot", "coth", "csc", "erf", "exp",
    "ln", "log", "sec", "sin", "sinh", "sqrt", "tan", "tanh",
})  # fmt: skip
HUGE = re.compile(r"[eE][-+]?\d{4}")  # an exponent that takes long to write out
INTEGER = re.compile(r"\d+")


def is_expression(text: str) -> bool:
    """True for arithmetic of numbers, symbols and elementary functions that is cheap to evaluate.

    >>> is_expression("2*sin(x)**2 + x/3"), is_expression("9**9**9"), is_expression("__import__('os')")
    (True, False, False)
    """
    if len(text) > LONGEST:
        return False
    try:
        tree = ast.parse(text.strip(), mode="eval")
        return _power(tree.body) <= POWER
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def _power(node: ast.expr) -> float:
    """The largest product of exponents in an expression; ValueError for anything else than arithmetic."""
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
        if not abs(node.value) < 10**DIGITS:
            raise ValueError("a number that is too large")
        return 1.0
    if isinstance(node, ast.Name) and "_" not in node.id:
        return 1.0
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.UAdd, ast.USub)):
        return _power(node.operand)
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.BitXor)):
        return max(_power(node.left), _power(node.right))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        return _power(node.left) * _exponent(node.right)
    is_allowed_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS
    if isinstance(node, ast.Call) and is_allowed_call and not node.keywords and 1 <= len(node.args) <= 2:
        return max(map(_power, node.args))
    raise ValueError(f"{type(node).__name__} is no arithmetic")


def _exponent(node: ast.expr) -> float:
    """A bound of the numbers in an exponent, of which none may be a power of numbers."""
    if _power(node) > 1 and not any(isinstance(x, ast.Name) for x in ast.walk(node)):
        raise ValueError("a power of powers")
    numbers = [
        abs(x.value) for x in ast.walk(node) if isinstance(x, ast.Constant) and isinstance(x.value, (int, float))
    ]
    return max(1.0, math.prod(max(1.0, x) for x in numbers))


@functools.cache
def _with_literals(module: str) -> None:
    """Let a scorer's module read literals where it would evaluate Python. Once a process."""
    vars(importlib.import_module(f"reasoning_gym.{module}"))["eval"] = ast.literal_eval


# ---------------------------------------------------------------- scorers that pay wrong answers in full
def halting(dataset: ProceduralDataset, answer: str, entry: Entry) -> float:
    """1 for the right one of True and False, case aside; the generator's own takes every text that is not empty for
    True, the right answer among them."""
    return float(answer.casefold() == str(entry["answer"]).casefold())


def finite_complex(dataset: ProceduralDataset, answer: str, entry: Entry) -> float:
    """The generator's own, which decays with the distance, for finite numbers: nan has none."""
    value: Any = dataset
    value = value.parse_string_to_complex(answer)
    return float(dataset.score_answer(answer, dict(entry))) if math.isfinite(abs(value)) else 0.0


def four_numbers(dataset: ProceduralDataset, answer: str, entry: Entry) -> float:
    """The generator's own, which pays any four numbers whose result is about 24, where they are the task's and the
    result is 24."""
    sympy = importlib.import_module("sympy")
    used = Counter(int(x) for x in INTEGER.findall(answer))
    if used != Counter(int(x) for x in entry["metadata"]["numbers"]) or sympy.sympify(answer) != 24:
        return min(0.01, float(dataset.score_answer(answer, dict(entry))))
    return float(dataset.score_answer(answer, dict(entry)))


def probability(dataset: ProceduralDataset, answer: str, entry: Entry) -> float:
    """1 within 0.0001 and one percent of the right probability, else 0; the generator's own pays every beginning of the
    right one in full, "0" on all tasks among them, and 0 for 0.00003."""
    if HUGE.search(answer):
        return 0.0
    probability_given, right = (Fraction(x.replace(",", "")) for x in (answer, entry["answer"]))
    gap = abs(probability_given - right)
    return float(gap <= Fraction(1, 10_000) and gap <= abs(right) / 100)


REPAIRED: Mapping[str, Callable[[Any, str, Entry], float]] = {
    "coin_flip": probability,
    "complex_arithmetic": finite_complex,
    "game_of_life_halting": halting,
    "puzzle24": four_numbers,
}


def score(generator: str, dataset: ProceduralDataset, answer: str, entry: Entry) -> float:
    """The generator's score of an answer, from 0 to 1; 0 for an answer on which its scorer raises, or that is no number
    to it. What it raises on its own answer too is an error of the task, and is raised."""
    if generator in PARSED and not is_expression(answer):
        return 0.0
    if generator in EVALUATED:
        _with_literals(EVALUATED[generator])
    scorer = REPAIRED.get(generator)

    def value_of(text: str) -> float:
        fresh = copy.deepcopy(dict(entry))  # some scorers play the answer out on the entry itself
        return scorer(dataset, text, fresh) if scorer is not None else float(dataset.score_answer(text, fresh))

    try:
        value = value_of(answer)
    except Exception:
        if isinstance(entry["answer"], str):
            value_of(entry["answer"])
        return 0.0
    return min(max(value, 0.0), 1.0) if math.isfinite(value) else 0.0
