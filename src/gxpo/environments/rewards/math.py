"""Math reward: equality of the completion's last expression and the answer, by math-verify, in a worker process.

math-verify's own time limits are alarms of the clock: verdicts would depend on the machine's load, and they break off
the main thread. They are off. Limits of size take their place, and a limit of processor time that the worker sets
(`gxpo.environments.rewards.worker.processor_time_limit`).
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from typing import Any

from gxpo.base.usercode import OverLimit
from gxpo.environments.rewards.final_answer import find_answers

# ---------------------------------------------------------------- numbers as completions write them
NUMERAL_LENGTH = 200  # characters
MAX_EXPONENT = 400  # exponent of ten
BLANK = r"\\[,;:! ]|\\thinspace\s?|~|\{,\}|[\u00a0\u2009\u202f]"  # no reader of mathematics takes these for a separator
SEPARATED = re.compile(rf"(?<=\d)(?<!(?<!\d)0)(?:{BLANK}|\\!,|,\\!)(?=\d{{3}}(?!\d))")
WHOLE_NUMBER = rf"[1-9]\d{{0,2}}(?P<mark>{BLANK}|\\!,|,\\!|[, ])\d{{3}}(?:(?P=mark)\d{{3}})*|\d+"
DIGITS = re.compile(r"-?\d+(?:\.\d+)?")
POWER = r"10\s*\^\s*(?:\{\s*(?P<braced>[-+]?\d+)\s*\}|(?P<bare>-?\d+))"
NUMERAL = re.compile(
    rf"(?P<sign>[-+]?)\s*(?:(?P<whole>{WHOLE_NUMBER})?(?P<part>\.\d+)?(?:[eE](?P<e>[-+]?\d+)"
    rf"|(?(whole)|(?(part)|(?!)))\s*(?:\\times|\\cdot|[*x\u00d7\u00b7])\s*{POWER})?"
    r"|10\s*\^\s*(?:\{\s*(?P<alone>[-+]?\d+)\s*\}|(?P<naked>-?\d+)))"
)
WRAPPED = (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"))


def numeral(text: str) -> Fraction | None:
    r"""Parse a text that is one number, exactly; None for anything else.

    >>> numeral(r"1\,000"), numeral("10^{-2}"), numeral("2.5e3"), numeral("(1, 0)"), numeral("1,00")
    (Fraction(1000, 1), Fraction(1, 100), Fraction(2500, 1), None, None)
    """
    # A long text is no number, and exact fractions of it would take for ever.
    if len(text) > NUMERAL_LENGTH:
        return None
    text = text.strip()
    for begin, end in WRAPPED:
        if text.startswith(begin) and text.endswith(end) and len(text) > len(begin) + len(end):
            text = text[len(begin) : -len(end)].strip()
    text = text.replace("\u2212", "-").removesuffix(".").strip()
    match = NUMERAL.fullmatch(text)
    if match is None or not (match["whole"] or match["part"] or match["alone"] or match["naked"]):
        return None
    digits = re.sub(r"\D", "", match["whole"] or "") if match["whole"] else ""
    power = next((int(x) for x in match.group("e", "braced", "bare", "alone", "naked") if x is not None), 0)
    # 10^(10^9) is written shortly and is a number that fills memory.
    if abs(power) > MAX_EXPONENT:
        return None
    is_power = match["alone"] is not None or match["naked"] is not None
    value = Fraction(1 if is_power else (digits or "0") + (match["part"] or "")) * Fraction(10) ** power
    return -value if match["sign"] == "-" else value


def plain(text: str) -> str:
    r"""Rewrite a number in plain digits; any other text without the separators in its numbers.

    >>> plain("1e-3"), plain("10^{-2}"), plain(r"1\,000"), plain(r"1\,000 x"), plain("x")
    ('0.001', '0.01', '1000', '1000 x', 'x')
    """
    value = numeral(text)
    if value is None or DIGITS.fullmatch(text.strip()):
        return join_digits(text)
    places = next(n for n in range(len(text) + MAX_EXPONENT + 1) if 10**n % value.denominator == 0)
    digits = str(abs(value.numerator) * (10**places // value.denominator)).zfill(places + 1)
    integer, part = (digits[:-places], f".{digits[-places:]}") if places else (digits, "")
    return f"{'-' if value < 0 else ''}{integer}{part}"


def join_digits(text: str) -> str:
    r"""Remove the blanks that separate thousands in a text's numbers.

    >>> join_digits(r"it is 1\,000 or 1{,}000")
    'it is 1000 or 1000'
    """
    return SEPARATED.sub("", text)


# ---------------------------------------------------------------- verdict
MAX_RELATIVE_GAP = Fraction(1, 100)  # share of the answer by which a number is another one, whatever it is rounded to
MARKS = ("$", "\\boxed", "\\(", "\\[")
LONGEST = 2000  # characters of one expression; the time to parse grows faster than its length
DEEPEST = 16  # brackets within each other; the time to parse doubles with a few of them
NODES, DEPTH = 1000, 100  # of the parsed expression
BITS = 1 << 20  # of a number that its evaluation may make: about 315,000 digits
SYMBOL = 16  # bits that a symbol counts for: it limits degrees to 65,536


class TooLarge(BaseException):
    """An expression exceeds a limit. Not an `Exception`: math-verify takes those for parse failures."""


def correct(completion: str, answer: Any) -> dict[str, float]:
    """Math verdict, `correct`: 1 where the final answer of `completion` equals `answer` by math-verify, else 0.

    The final answer is that of `rewards.final_answer`, the last box or `<answer>` element after the thought; in a
    completion with neither, what math-verify finds after the thought. Two numbers (1\\,000,
    10^{-6}) are compared exactly, and those more than one percent apart are different, however small.

    `answer` is LaTeX, with or without `$`, or a number. A completion without anything readable is wrong; an `answer`
    that can't be read is an error of the data, so it raises (unscored). An expression that is too large to be parsed or
    evaluated (`9^{9^9}`) is right where the answer has the same form; else it raises `OverLimit`, which counts as
    wrong. Source: math-verify `parse` and `verify`.
    """
    from math_verify import verify

    text = str(answer)
    expected = numeral(text)
    try:
        text = plain(text)
        gold = _parse(text if any(mark in text for mark in MARKS) else f"${text}$")
    except TooLarge as error:
        raise ValueError(f"the answer {str(answer)[:50]!r} can't be read: {error}") from None
    # An answer that can't be read would make every completion wrong.
    if answer is None or not gold:
        raise ValueError(f"the answer {answer!r} can't be read as mathematics")
    # Two plain numbers are decided here where they are equal or far apart; math-verify judges those in between.
    extraction = find_answers(completion)
    if (
        extraction.answer is not None
        and expected is not None
        and (given_number := numeral(extraction.answer)) is not None
    ):
        if given_number == expected:
            return {"correct": 1.0}
        if abs(given_number - expected) > MAX_RELATIVE_GAP * abs(expected):
            return {"correct": 0.0}
    try:
        expressions = (
            _parse(join_digits(extraction.rest)) if extraction.answer is None else _answer(plain(extraction.answer))
        )
    except TooLarge as error:
        raise OverLimit(f"an expression that is not worth parsing: {error}") from None
    # Equal forms are right however large they are: they need no evaluation.
    if any(gold_expression == expression for gold_expression in gold for expression in expressions):
        return {"correct": 1.0}
    # math-verify evaluates both sides, so expressions that would make huge numbers are refused before.
    try:
        for expression in (*gold, *expressions):
            if not isinstance(expression, str):
                evaluable(expression)
    except TooLarge as error:
        raise OverLimit(f"an expression that is not worth evaluating: {error}") from None
    return {"correct": float(verify(gold, expressions, timeout_seconds=0, raise_on_error=True))}


def _answer(text: str) -> list[Any]:
    """Expressions of a final answer: read as mathematics, or else as a sentence that holds some."""
    readings = [text, f"\\boxed{{{text}}}"] if any(mark in text for mark in MARKS) else [f"\\boxed{{{text}}}", text]
    expressions: list[Any] = []
    for reading in readings:
        expressions = _parse(reading) or expressions
        if any(not isinstance(expression, str) for expression in expressions):
            break
    return expressions


def _parse(text: str) -> list[Any]:
    """Parse a text: its expressions, unevaluated, and the text of the first; `TooLarge` beyond a limit."""
    _limit_parser()
    from math_verify import parse

    return parse(text, parsing_timeout=0)


@cache
def _limit_parser() -> None:
    """Make math-verify check the size of each candidate before it parses it; once a process."""
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
    """Check the size of an expression's text: `TooLarge` where parsing would take long.

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
    """Check a parsed expression: `TooLarge` where evaluation would make large numbers, or for too many parts."""
    from sympy import Float, MatrixBase, Pow, Rational, Symbol, gamma
    from sympy.functions.combinatorial.factorials import CombinatorialFunction

    nodes = 0

    def value(x: Any, size: float) -> float:
        """Upper bound of |x| for an x of `size` bits."""
        # Exactly where that is cheap: an exponent decides the size of its power.
        if isinstance(x, Rational) and size < 1000:
            return abs(x.p) / x.q
        return abs(float(x)) if isinstance(x, Float) else 2.0 ** min(size, 1000)

    def bits(x: Any, depth: int) -> float:
        """Upper bound of log2 of the numerators and denominators that evaluating `x` makes."""
        nonlocal nodes
        nodes += 1
        # Counted over the whole expression: many small parts take long as well.
        if nodes > NODES or depth > DEPTH:
            raise TooLarge(f"more than {NODES} parts, or {DEPTH} within each other")
        if isinstance(x, Rational):
            return math.log2(max(abs(x.p), x.q))
        if isinstance(x, Symbol):
            return SYMBOL
        # Bounds by kind: a power multiplies bits by its exponent, n! is below n^n, anything else adds up at most.
        parts = list(x.flat() if isinstance(x, MatrixBase) else x.args)
        sizes = [bits(part, depth + 1) for part in parts]
        if isinstance(x, Pow):
            n_bits = sizes[0] * value(parts[1], sizes[1])
        elif isinstance(x, (CombinatorialFunction, gamma)):  # n! < n^n
            n_bits = max(sizes) * 2.0 ** min(max(sizes), 1000)
        else:
            n_bits = max(1.0, sum(sizes))
        if n_bits > BITS:
            raise TooLarge(f"numbers of more than {BITS} bits")
        return n_bits

    bits(expression, 0)
