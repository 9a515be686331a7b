"""Right answers in other ways: each means the same, and only what an answer's form allows is written."""

from __future__ import annotations

import pytest

from gxpo.explain.probes import PROBES, texts_of, variants

ALWAYS = {"blanks around", "dollars", "full stop"}


@pytest.mark.parametrize(
    ("answer", "others"),
    [
        ("7", {"decimal": "7.0", "equation": "x = 7"}),
        ("-1234", {"decimal": "-1234.0", "thousands": "-1,234", "equation": "x = -1234"}),
        ("1,234", {"no thousands": "1234", "equation": "x = 1,234"}),
        ("0.5", {"further zero": "0.50", "slash": "1/2", "equation": "x = 0.5"}),
        ("3/4", {"frac": "\\frac{3}{4}", "dfrac": "\\dfrac{3}{4}", "decimal": "0.75", "equation": "x = 3/4"}),
        ("-\\frac{1}{3}", {"slash": "-1/3", "dfrac": "-\\dfrac{1}{3}", "equation": "x = -\\frac{1}{3}"}),
        ("50%", {"escaped percent": "50\\%", "equation": "x = 50%"}),
        ("B", {"parentheses": "(B)", "text": "\\text{B}"}),
        ("Paris", {"upper case": "PARIS", "lower case": "paris", "text": "\\text{Paris}"}),
        ("(1,2)", {"left right": "\\left(1,2\\right)", "blanks after commas": "(1, 2)"}),
        ("p - q", {}),
        ("3/0", {"frac": "\\frac{3}{0}", "dfrac": "\\dfrac{3}{0}", "equation": "x = 3/0"}),
    ],
)
def test_variants(answer: str, others: dict[str, str]) -> None:
    assert {k: v for k, v in variants(answer).items() if k not in ALWAYS} == others
    assert set(variants(answer)) >= ALWAYS


def test_each_text_of_a_kind_goes_to_some_task() -> None:
    assert [t for i in range(2) for t in texts_of("gibberish", i, 2)] != []
    for kind, probe in PROBES.items():
        assert {t for i in range(3) for t in texts_of(kind, i, 3)} == set(probe.texts)
