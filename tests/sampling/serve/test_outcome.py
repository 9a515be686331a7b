"""Results of agents: values that can be parsed, and errors in one line for all others."""

from __future__ import annotations

import fractions
import json

import numpy as np
import pytest
import torch

from gxpo.sampling.serve.outcome import Nonsense, Outcome, last_line, outcome_of
from gxpo.sampling.serve.strict_json import Malformed


@pytest.mark.parametrize(
    ("value", "outcome"),
    [
        (fractions.Fraction(1, 4), Outcome(0.25)),
        (np.float32(0.5), Outcome(0.5)),
        ({"reward": "0.5"}, Outcome(0.5)),
        ({"reward": True, "success": 0}, Outcome(1.0, False)),
        ({"success": np.bool_(True), "answer": 42}, Outcome(None, True, "42")),
        ({"rewards": {"speed": 2}, "info": {"n": (1, 2)}}, Outcome(rewards={"speed": 2.0}, info={"n": [1, 2]})),
    ],
)
def test_numbers_verdicts_and_mappings_are_parsed(value, outcome):
    assert outcome_of(value) == outcome


class Odd:
    def __float__(self):
        raise RuntimeError("no")

    def __str__(self):
        raise RuntimeError("no")


NONSENSE = [
    10**400, 10**5000, -(10**400), float("nan"), float("inf"), 1j, [0.5], b"1", Odd(), torch.tensor([1.0, 2.0]),
    {"reward": 10**400}, {"reward": "1_0"}, {"reward": "nan"}, {"reward": [1]}, {"reward": Odd()}, {"reward": ""},
    {"success": "no"}, {"success": 0.5}, {"success": []}, {"score": 1}, {"\ud800": 1}, {1: 1},
    "\ud800", {"answer": "x\udfff"}, {"answer": Odd()}, {"answer": 10**5000}, {"answer": "a" * (1 << 21)},
    {"rewards": [1]}, {"rewards": {"a": "x"}}, {"rewards": {"a": 10**400}}, {"rewards": {"\ud800": 1}},
    {"rewards": {"agent": 1}}, {"rewards": {str(i): 1 for i in range(65)}}, {"rewards": {"a\nb": 1}},
    {"info": [1]}, {"info": {"a": float("nan")}}, {"info": {"a": "\ud800"}}, {"info": {"a": json}},
    {"info": {"a": "b" * (1 << 21)}}, {"info": {1: 1, "1": 2}},
]  # fmt: skip


def test_an_invalid_result_is_a_one_line_error():
    accepted = []
    for number, value in enumerate(NONSENSE):
        try:
            accepted.append((number, outcome_of(value)))
        except Nonsense as error:
            assert "\n" not in str(error), number
    assert not accepted


def test_nonsense_that_is_nested_without_end():
    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(Nonsense, match="info can't be written as JSON"):
        outcome_of({"info": {"a": deep}})


@pytest.mark.parametrize(
    ("output", "value"),
    [
        (b"", None), (b"\n \n", None), (b"0.5", 0.5), (b"log\r\n0.5\r\n\r\n", 0.5), (b"\xff\xfe\n1\n", 1),
        (b'{"answer": "a\\u2028b"}\n', {"answer": "a\u2028b"}),
        ('{"answer": "a\u2028b"}\n'.encode(), {"answer": "a\u2028b"}),  # a separator of lines for Python, not in JSON
        (b'"done"', "done"), (b"null\n", None),
    ],
)  # fmt: skip
def test_the_last_line_is_the_result(output, value):
    assert last_line(output) == value


def test_a_last_line_that_is_not_json_is_an_error():
    for output in (b"done\n", b"1\n\xff", b"NaN"):
        with pytest.raises(Malformed):
            last_line(output)


def test_a_last_line_that_was_cut_is_refused():
    with pytest.raises(Malformed, match="longer than 4 bytes"):
        last_line(b"1234", is_whole=False)
    assert last_line(b"ab\n1234", is_whole=False) == 1234
