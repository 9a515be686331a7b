"""Tools of ToolQA: the calculator against Python's parser, and comparison of answers."""

import ast
import operator
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gxpo_worlds.toolqa_tools import CallError, calculate, normalised, number_text

OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def python_value(expression: str) -> Fraction:
    """What Python's own parser makes of an expression, in fractions."""

    def walk(node: ast.expr) -> Fraction:
        if isinstance(node, ast.BinOp):
            return OPERATIONS[type(node.op)](walk(node.left), walk(node.right))
        if isinstance(node, ast.UnaryOp):
            return -walk(node.operand) if isinstance(node.op, ast.USub) else walk(node.operand)
        assert isinstance(node, ast.Constant)
        return Fraction(str(node.value))

    return walk(ast.parse(expression, mode="eval").body)


numbers = st.one_of(st.integers(0, 999).map(str), st.decimals(0, 99, places=2).map(str))


expressions = st.recursive(
    numbers,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "/", " + ", " - "]), inner).map("".join),
        inner.map(lambda text: f"({text})"),
        inner.map(lambda text: f"-{text}"),
    ),
    max_leaves=7,
).filter(lambda text: len(text) <= 120)


@given(expressions)
def test_the_calculator_agrees_with_python(expression: str):
    try:
        expected = python_value(expression)
    except ZeroDivisionError:
        with pytest.raises(CallError, match="zero"):
            calculate(expression)
        return
    assert calculate(expression) == expected
    assert abs(Fraction(number_text(expected)) - expected) <= Fraction(1, 2 * 10**6)


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("2+3*4", "14"),
        ("(2+3)*4", "20"),
        ("20-3-4", "13"),
        ("2/3", "0.666667"),
        ("-2*-3", "6"),
        ("1 \u00d7 6 \u00f7 4 \u2212 1", "0.5"),
        ("0.1+.2", "0.3"),
        ("-1/4", "-0.25"),
        ("0/3", "0"),
    ],
)
def test_results_worked_by_hand(expression: str, said: str):
    assert number_text(calculate(expression)) == said


@pytest.mark.parametrize(
    "expression",
    [
        *("", " ", "()", "1+", "*1", "1 2", "(1", "1)", "2(3)", "a", "1e3", "2**3", "2//1", "1/0", "1/(2-2)", "1,5"),
        *("\u0663", "1.2.3", "__import__('os')", "(" * 5000, "(" * 120, "-" * 121 + "1", "1+" * 61 + "1"),
    ],
)
def test_what_is_no_expression(expression: str):
    with pytest.raises(CallError):
        calculate(expression)


@pytest.mark.parametrize(
    ("answer", "other", "equal"),
    [
        ("1906", " 1906. ", True),
        ("1906", "1,906", True),
        ("1906", "1906.0", True),
        ("-5", "-5", True),
        ("-5", "5", False),
        ("1906", "in 1906", False),
        ("1906", "19 06", False),
        ("the Grey Sea", "Grey  sea", True),
        ("an engineer", '"Engineer"', True),
        ("Orvania", "Orvani", False),
        ("0", "", False),
        ("7" * 5000, "7" * 5000, True),
    ],
)
def test_which_answers_are_equal(answer: str, other: str, equal: bool):
    assert (normalised(answer) == normalised(other)) == equal
