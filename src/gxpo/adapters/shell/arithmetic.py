"""Arithmetic of bash: the value of `$((...))`, in 64 bits."""

from __future__ import annotations

import operator as op
import re
from collections.abc import Callable

from gxpo.adapters.shell.syntax import DEEPEST

_NUMBERS = re.compile(r"\s*(0[xX][0-9a-fA-F]+|\d+|[A-Za-z_]\w*|\*\*|<<=|>>=|[-+*/%&|^]=|[<>=!]=|\+\+|--|&&|\|\||<<|>>|"
                      r"[-+*/%&|^~!<>?:=(),])")  # fmt: skip
_LEVELS = {"||": 1, "&&": 2, "|": 3, "^": 4, "&": 5, "==": 6, "!=": 6, "<": 7, ">": 7, "<=": 7, ">=": 7, "<<": 8,
           ">>": 8, "+": 9, "-": 9, "*": 10, "/": 10, "%": 10, "**": 11}  # fmt: skip
_SIMPLE = {"+": op.add, "-": op.sub, "*": op.mul, "&": op.and_, "|": op.or_, "^": op.xor, "<": op.lt, ">": op.gt,
           "<=": op.le, ">=": op.ge, "==": op.eq, "!=": op.ne}  # fmt: skip
_WORDS = 1 << 64


class Arithmetic:
    """Value of an arithmetic expression of bash, in 64 bits; ValueError where it can't be known.

    value_of  integer of a name, or ValueError;   assign  called with a name and its new value
    """

    def __init__(self, text: str, value_of: Callable[[str], int], assign: Callable[[str, int], None]) -> None:
        self.value_of, self.assign, self.tokens, i = value_of, assign, list[str](), 0
        while text[i:].strip():
            match = _NUMBERS.match(text, i)
            if match is None or len(self.tokens) > 500:
                raise ValueError(text)
            self.tokens.append(match[1])
            i = match.end()
        self.tokens.append("")
        self.place = self.depth = 0

    def result(self) -> int:
        """Evaluate the whole expression; an empty one is 0."""
        value = self.binary(0) if self.tokens[0] else 0
        if self.tokens[self.place]:
            raise ValueError(self.tokens[self.place])
        return value

    def take(self) -> str:
        self.place += 1
        return self.tokens[self.place - 1]

    def binary(self, level: int) -> int:
        """Evaluate operators that bind at least as `level`; 0 includes the condition `a ? b : c`."""
        self.depth += 1
        if self.depth > DEEPEST:
            raise ValueError("too deep")
        left = self.unary()
        while (operator := self.tokens[self.place]) in _LEVELS and _LEVELS[operator] >= max(level, 1):
            self.place += 1
            right = self.binary(_LEVELS[operator] + (operator != "**"))
            left = _wrapped(_applied(operator, left, right))
        if level == 0 and operator == "?":
            self.place += 1
            first = self.binary(0)
            if self.take() != ":":
                raise ValueError("?")
            second = self.binary(0)
            left = first if left else second
        self.depth -= 1
        return left

    def unary(self) -> int:
        token = self.take()
        if token in ("-", "+", "!", "~"):
            self.depth += 1
            if self.depth > DEEPEST:
                raise ValueError("too deep")
            value = self.unary()
            self.depth -= 1
            return _wrapped({"-": -value, "+": value, "!": int(not value), "~": ~value}[token])
        if token == "(":
            value = self.binary(0)
            if self.take() != ")":
                raise ValueError("(")
            return value
        if token in ("++", "--"):
            name = self.take()
            value = _wrapped(self.value_of(name) + (1 if token == "++" else -1))
            self.assign(name, value)
            return value
        if token[:1].isdigit():
            return _wrapped(int(token, 8 if token[0] == "0" and token.isdigit() else 0))
        if not (token[:1].isalpha() or token[:1] == "_"):
            raise ValueError(token)
        return self.evaluate_name(token)

    def evaluate_name(self, name: str) -> int:
        """Evaluate a name, or an assignment to it."""
        operator = self.tokens[self.place]
        if operator in ("++", "--"):
            self.place += 1
            value = self.value_of(name)
            self.assign(name, _wrapped(value + (1 if operator == "++" else -1)))
            return value
        if operator.endswith("=") and operator not in _LEVELS:
            self.place += 1
            value = self.binary(0)
            if operator != "=":
                value = _wrapped(_applied(operator[:-1], self.value_of(name), value))
            self.assign(name, value)
            return value
        return self.value_of(name)


def _wrapped(value: int) -> int:
    """Bring an integer into 64 bits with a sign, as bash does."""
    return (value + _WORDS // 2) % _WORDS - _WORDS // 2


def _applied(operator: str, a: int, b: int) -> int:
    """Apply an operator; division is towards zero. ValueError where bash would stop."""
    if operator in ("/", "%"):
        if b == 0:
            raise ValueError("division by zero")
        quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        return quotient if operator == "/" else a - b * quotient
    if operator == "**":
        if b < 0:
            raise ValueError("negative exponent")
        return pow(a, b, _WORDS)
    if operator in ("<<", ">>"):
        return a << (b % 64) if operator == "<<" else a >> (b % 64)
    if operator in ("&&", "||"):
        return int(bool(a and b if operator == "&&" else a or b))
    return int(_SIMPLE[operator](a, b))
