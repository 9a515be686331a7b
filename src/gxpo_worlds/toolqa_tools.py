"""Tools of ToolQA: schemas, validation of arguments, a calculator, and comparison of answers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

TOKEN = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+|[-+*/()])")
LONGEST = 120  # characters of an expression or number; keeps numbers small and the parser's depth bounded
NUMBER = re.compile(r"[+-]?(\d{1,3}(,\d{3})+|\d+)(\.\d+)?")
SIGNS = str.maketrans({"\u00d7": "*", "\u00f7": "/", "\u2212": "-"})
MOST_PASSAGES = 5


class CallError(ValueError):
    """Error of a call that can't be carried out; the message gives the reason."""


def _schema(name: str, description: str, required: Sequence[str], **parameters: tuple[str, str]) -> dict[str, Any]:
    properties = {key: {"type": kind, "description": text} for key, (kind, text) in parameters.items()}
    object_schema = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": object_schema}}


SCHEMAS: dict[str, dict[str, Any]] = {
    "calculator": _schema(
        "calculator",
        "Works out an expression of numbers, + - * / and parentheses.",
        ["expression"],
        expression=("string", "such as (3 + 4) * 12"),
    ),
    "lookup": _schema(
        "lookup",
        "Looks up a number in a table.",
        ["table", "row", "column"],
        table=("string", "name of the table"),
        row=("string", "name of the row"),
        column=("string", "name of the column"),
    ),
    "search": _schema(
        "search",
        "Finds the passages of an encyclopaedia that match a query best.",
        ["query"],
        query=("string", "a few words, such as a name"),
        k=("integer", f"how many passages, 1 to {MOST_PASSAGES}; 3 if left out"),
    ),
    "finish": _schema(
        "finish",
        "Gives the final answer to the question.",
        ["answer"],
        answer=("string", "a name or a number and nothing else"),
    ),
}


def checked(name: str, arguments: Mapping[str, Any], offered: Sequence[str]) -> dict[str, Any]:
    """Arguments of a call, validated by its schema. A number is accepted where a text is wanted.

    Raises CallError for an unknown tool, and for missing, unknown or wrongly typed arguments.
    """
    # the message names the choices, so that a policy can correct its call
    if name not in offered:
        raise CallError(f"There is no tool {name!r}; the tools are {', '.join(offered)}.")
    parameters = SCHEMAS[name]["function"]["parameters"]
    names = ", ".join(parameters["properties"])
    if unknown := [key for key in arguments if key not in parameters["properties"]]:
        raise CallError(f"{name} has no argument {unknown[0]!r}; its arguments are {names}.")
    if missing := [key for key in parameters["required"] if key not in arguments]:
        raise CallError(f"{name} needs the argument {missing[0]!r}; its arguments are {names}.")
    validated = {}
    for key, value in arguments.items():
        kind = parameters["properties"][key]["type"]
        # models write 1906 for "1906"; True is an int to isinstance and no text
        if kind == "string" and type(value) in (int, float):
            value = str(value)
        if type(value) is not (str if kind == "string" else int):
            raise CallError(f"{name}: the argument {key!r} must be of type {kind}.")
        validated[key] = value
    return validated


def calculate(expression: str) -> Fraction:
    """Evaluate an expression of numbers, + - * /, signs and parentheses exactly; nothing is executed.

    Raises CallError for anything else, and for a division by zero.

    >>> calculate("-2 * (3 + 4.5)"), calculate("1/3")
    (Fraction(-15, 1), Fraction(1, 3))
    """
    return _Parser(expression.translate(SIGNS)).value()


class _Parser:
    """Recursive descent, a method for each level of precedence."""

    def __init__(self, text: str) -> None:
        # bounds the depth of the recursion, and the digits of results
        if len(text) > LONGEST:
            raise CallError(f"The expression is longer than {LONGEST} characters.")
        text = text.rstrip()
        self.tokens: list[str] = []
        position = 0
        while position < len(text):
            match = TOKEN.match(text, position)
            if match is None or not match[1].isascii():
                raise CallError(
                    f"{text[position:].strip()[0]!r} can't stand in an expression; use numbers, + - * / ( )."
                )
            self.tokens.append(match[1])
            position = match.end()
        self.tokens.reverse()  # the next token is at the end

    def value(self) -> Fraction:
        value = self._sum()
        if self.tokens:
            raise CallError(f"{self.tokens[-1]!r} is not expected there.")
        return value

    def _next_is(self, among: str) -> bool:
        return bool(self.tokens) and self.tokens[-1] in among

    def _sum(self) -> Fraction:
        value = self._product()
        while self._next_is("+-"):
            value = value + self._product() if self.tokens.pop() == "+" else value - self._product()
        return value

    def _product(self) -> Fraction:
        value = self._signed()
        while self._next_is("*/"):
            if self.tokens.pop() == "*":
                value *= self._signed()
                continue
            divisor = self._signed()
            if divisor == 0:
                raise CallError("Division by zero.")
            value /= divisor
        return value

    def _signed(self) -> Fraction:
        sign = 1
        while self._next_is("+-"):
            sign = -sign if self.tokens.pop() == "-" else sign
        return sign * self._atom()

    def _atom(self) -> Fraction:
        token = self.tokens.pop() if self.tokens else "the end"
        if token == "(":
            value = self._sum()
            if not self.tokens or self.tokens.pop() != ")":
                raise CallError("A parenthesis is not closed.")
            return value
        if token[-1].isdigit():
            return Fraction(token)
        raise CallError(f"A number is missing before {token!r}.")


def number_text(value: Fraction) -> str:
    """Format a number as the calculator does: whole, or rounded to six decimals.

    >>> number_text(Fraction(906)), number_text(Fraction(-1, 3)), number_text(Fraction(5, 2))
    ('906', '-0.333333', '2.5')
    """
    millionths = round(value * 10**6)
    integer, fraction = divmod(abs(millionths), 10**6)
    return ("-" if millionths < 0 else "") + f"{integer}.{fraction:06d}".rstrip("0").rstrip(".")


def normalised(answer: str) -> str:
    """Normalise an answer: ignore case, spaces, a leading article, outer punctuation and the spelling of numbers.

    >>> [normalised(text) for text in (" The Grey  Sea.", "1,906.0", "+7", "3 rivers")]
    ['grey sea', '1906', '7', '3 rivers']
    """
    text = " ".join(answer.lower().split()).strip("\"'`*!?;: ").rstrip(".")
    # as numbers: 1,906.0 and 1906 are one answer
    if len(text) <= LONGEST and NUMBER.fullmatch(text):
        return number_text(Fraction(text.replace(",", "")))
    return re.sub(r"^(the|an|a) ", "", text)
