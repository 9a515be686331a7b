"""Math reward: equality of the completion's last expression and the answer, by math-verify, in a worker process.

math-verify's own time limits are alarms of the clock: verdicts would depend on the machine's load, and they break off
the main thread. They are off. Limits of size take their place, and a limit of processor time that the worker sets
(`gxpo.environments.rewards.worker.computing`).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from typing import Any

from gxpo.base.usercode import OverLimit
from gxpo.environments.rewards.final_answer import find_answers
from gxpo.environments.rewards.numerals import numeral, plain, unseparated

APART = Fraction(1, 100)  # share of the answer by which a number is another one, whatever it is rounded to
MARKS = ("$", "\\boxed", "\\(", "\\[")
LONGEST = 2000  # characters of one expression; the time to parse grows faster than its length
DEEPEST = 16  # brackets within each other; the time to parse doubles with a few of them
NODES, DEPTH = 1000, 100  # of the parsed expression
BITS = 1 << 20  # of a number that its evaluation may make: about 315,000 digits
SYMBOL = 16  # bits that a symbol counts for: it limits degrees to 65,536


class TooLarge(BaseException):
    """An expression exceeds a limit. Not an `Exception`: math-verify takes those for parse failures."""


def correct(completion: str, answer: Any) -> dict[str, float]:
    """`correct`: 1 where the final answer of `completion` equals `answer` by math-verify, else 0.

    The final answer is that of `rewards.final_answer`, the last box or `<answer>` element after the thought; in a
    completion with neither, what math-verify finds after the thought. Two numbers (`rewards.numerals`: 1\\,000,
    10^{-6}) are compared exactly, and those more than one percent apart are different, however small.

    `answer` is LaTeX, with or without `$`, or a number. A completion without anything readable is wrong; an `answer`
    that can't be read is an error of the data, so it raises (unscored). An expression that is too large to be parsed or
    evaluated (`9^{9^9}`) is right where the answer has the same form; else it raises `OverLimit`, which counts as
    wrong. Source: math-verify `parse` and `verify`.
    """
    from math_verify import verify

    text = str(answer)
    right = numeral(text)
    try:
        text = plain(text)
        gold = _parsed(text if any(mark in text for mark in MARKS) else f"${text}$")
    except TooLarge as error:
        raise ValueError(f"the answer {str(answer)[:50]!r} can't be read: {error}") from None
    if answer is None or not gold:
        raise ValueError(f"the answer {answer!r} can't be read as mathematics")
    extraction = find_answers(completion)
    if extraction.answer is not None and right is not None and (number := numeral(extraction.answer)) is not None:
        if number == right:
            return {"correct": 1.0}
        if abs(number - right) > APART * abs(right):
            return {"correct": 0.0}
    try:
        expressions = (
            _parsed(unseparated(extraction.rest)) if extraction.answer is None else _answer(plain(extraction.answer))
        )
    except TooLarge as error:
        raise OverLimit(f"an expression that is not worth parsing: {error}") from None
    if any(one == other for one in gold for other in expressions):
        return {"correct": 1.0}
    try:
        for expression in (*gold, *expressions):
            if not isinstance(expression, str):
                evaluable(expression)
    except TooLarge as error:
        raise OverLimit(f"an expression that is not worth evaluating: {error}") from None
    return {"correct": float(verify(gold, expressions, timeout_seconds=0, raise_on_error=True))}


def _answer(text: str) -> list[Any]:
    """Expressions of a final answer: read as mathematics, or as a sentence where it is none."""
    readings = [text, f"\\boxed{{{text}}}"] if any(mark in text for mark in MARKS) else [f"\\boxed{{{text}}}", text]
    expressions: list[Any] = []
    for reading in readings:
        expressions = _parsed(reading) or expressions
        if any(not isinstance(expression, str) for expression in expressions):
            break
    return expressions


def _parsed(text: str) -> list[Any]:
    """Expressions, unevaluated, and the text of the first; `TooLarge` where a candidate is beyond a limit."""
    _limit_parser()
    from math_verify import parse

    return parse(text, parsing_timeout=0)


@cache
def _limit_parser() -> None:
    """Check what math-verify has taken out of a text before it is parsed. Once a process."""
    from math_verify import parser

    def limited(parse: Callable[[str], Any]) -> Callable[[str], Any]:
        def within(text: str) -> Any:
            parsable(text)
            return parse(text)

        return within

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its time limit is off
    parser.parse_latex_cached = limited(parser.parse_latex_cached)
    parser.parse_expr_cached = limited(parser.parse_expr_cached)


def parsable(text: str) -> None:
    """`TooLarge` for an expression whose parsing would take long.

    >>> parsable("1+" * 500 + "1")
    """
    if len(text) > LONGEST:
        raise TooLarge(f"{len(text)} characters, above {LONGEST}")
    depth = deepest = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    if deepest > DEEPEST:
        raise TooLarge(f"{deepest} brackets within each other, above {DEEPEST}")


def evaluable(expression: Any) -> None:
    """`TooLarge` for a parsed expression whose evaluation would make large numbers, or that has too many parts."""
    from sympy import Float, MatrixBase, Pow, Rational, Symbol, gamma
    from sympy.functions.combinatorial.factorials import CombinatorialFunction

    nodes = 0

    def value(x: Any, size: float) -> float:
        """How large |x| may be, of `size` bits."""
        if isinstance(x, Rational) and size < 1000:
            return abs(x.p) / x.q
        return abs(float(x)) if isinstance(x, Float) else 2.0 ** min(size, 1000)

    def bits(x: Any, depth: int) -> float:
        """An upper bound of log2 of the numerators and denominators that evaluating `x` makes."""
        nonlocal nodes
        nodes += 1
        if nodes > NODES or depth > DEPTH:
            raise TooLarge(f"more than {NODES} parts, or {DEPTH} within each other")
        if isinstance(x, Rational):
            return math.log2(max(abs(x.p), x.q))
        if isinstance(x, Symbol):
            return SYMBOL
        parts = list(x.flat() if isinstance(x, MatrixBase) else x.args)
        sizes = [bits(part, depth + 1) for part in parts]
        if isinstance(x, Pow):
            made = sizes[0] * value(parts[1], sizes[1])
        elif isinstance(x, (CombinatorialFunction, gamma)):  # n! < n^n
            made = max(sizes) * 2.0 ** min(max(sizes), 1000)
        else:
            made = max(1.0, sum(sizes))
        if made > BITS:
            raise TooLarge(f"numbers of more than {BITS} bits")
        return made

    bits(expression, 0)
