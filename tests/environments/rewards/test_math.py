"""math-verify's limits: what is too large to be parsed or evaluated is noticed at once, whatever the machine does."""

from __future__ import annotations

import pytest

from gxpo.base.usercode import OverLimit
from gxpo.environments.rewards.math import BITS, DEEPEST, LONGEST, TooLarge, correct, evaluable, parsable


@pytest.mark.parametrize(
    "expression",
    [
        "9^{9^9}", "9^{9^{9^9}}", "-9^{9^9}", r"\frac{1}{9^{9^9}}", r"\sqrt[3]{9^{9^9}}", "9^{-9^9}", "x^{9^{9^9}}",
        "10^{10^7}", "2^{2^{2^5}}", r"2^{2^{21}}", "(x+1)^{100000}", "100000000!", "5!!!!!", "3" + "!" * 500,
        r"e^{10^{10^{10}}}", r"\lfloor 9^{9^9} \rfloor", r"9^{9^9} \mod 7", r"\{9^{9^9}, 1\}", "x = 9^{9^9}",
        "(1, 9^{9^9})", r"\begin{pmatrix} 9^{9^9} & 1 \\ 1 & 1\end{pmatrix}", r"\log_2 (9^{9^9})",
        "(" * 40 + "1" + ")" * 40, r"\frac{" * 40 + "1" + "}{2}" * 40, "1" + "+1" * 2000, "(" * 2000 + "1",
    ],
)  # fmt: skip
def test_what_is_too_large_is_wrong_at_once(expression: str) -> None:
    with pytest.raises(OverLimit):
        correct(rf"so \boxed{{{expression}}}", "4")


@pytest.mark.parametrize(
    ("completion", "answer", "verdict"),
    [
        (r"\boxed{2^{2^{10}}}", "2^{1024}", 1.0),
        (r"\boxed{2024^{2024}}", r"2024 \cdot 2024^{2023}", 1.0),
        (r"\boxed{2^{100000}}", "4", 0.0),
        (r"\boxed{\binom{100}{50}}", r"\frac{100!}{50! 50!}", 1.0),
        (r"\boxed{\sqrt{\sqrt{\sqrt{256}}}}", "2", 1.0),
        (r"\boxed{x^{2024}}", r"x^{2000} \cdot x^{24}", 1.0),
        (r"\boxed{(-1)^{10^{10}}}", "1", 1.0),
        (r"\boxed{9^{9^9}}", "9^{9^9}", 1.0),  # nothing is evaluated: the form is the same
        ("((((((((((((((((((((( is what I think of $9^{9^9}$, but \\boxed{4}", "4", 1.0),  # what else it says
    ],
)
def test_what_is_not_is_judged(completion: str, answer: str, verdict: float) -> None:
    assert correct(completion, answer) == {"correct": verdict}


def test_reference_answer_too_large_to_read_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"the answer '\(\(.* can't be read: 40 brackets within each other"):
        correct("4", "(" * 40 + "1" + ")" * 40)


def test_limits_of_a_text() -> None:
    parsable("x" * LONGEST)
    parsable("{[(" * (DEEPEST // 3) + ")]}" * (DEEPEST // 3) + "[1]" * 100)
    for text, words in (("x" * (LONGEST + 1), "2001 characters"), ("{" * (DEEPEST + 1), "17 brackets")):
        with pytest.raises(TooLarge, match=words):
            parsable(text)


def test_limits_of_an_expression() -> None:
    import sympy

    with sympy.evaluate(False):
        powers = {n: sympy.Pow(sympy.Integer(2), sympy.Integer(n)) for n in (BITS, -BITS, BITS + 1, -BITS - 1)}
        sums = {n: sympy.Add(*[sympy.Symbol("x")] * n) for n in (900, 1000)}
    for small in (powers[BITS], powers[-BITS], sums[900]):
        evaluable(small)
    for large in (powers[BITS + 1], powers[-BITS - 1]):
        with pytest.raises(TooLarge, match="numbers of more than 1048576 bits"):
            evaluable(large)
    with pytest.raises(TooLarge, match="more than 1000 parts"):
        evaluable(sums[1000])
