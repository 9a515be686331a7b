"""Strict JSON: everything that Python's parser would guess, round or crash on is an error of one line."""

from __future__ import annotations

import pytest

from gxpo.sampling.serve.strict_json import DEPTH, Malformed, check_texts, parse

DEEP = "[" * 100_000
MALFORMED = {
    b"done": "Expecting value", b"reward: 0.5": "Expecting value", b"0,5": "Extra data", b"1 2": "Extra data",
    b'{"reward": 0.5': "line 1 column", b"1\xff": "byte 2 is not UTF-8", b"NaN": "NaN is no JSON",
    b"-Infinity": "Infinity is no JSON", b"1e999": "1e999 is too large", b'{"a": 1, "a": 1}': "'a' stands twice",
    b'"\\ud800"': "half a surrogate pair", b"1" * 5000: "4300 digits",
    DEEP.encode(): "nested deeper than 64", b"[" * 65 + b"]" * 65: "nested deeper than 64",
}  # fmt: skip


def test_what_is_not_strict_json_is_a_one_line_error():
    for text, words in MALFORMED.items():
        with pytest.raises(Malformed, match=words) as caught:
            parse(text)
        assert "\n" not in str(caught.value)


def test_values_of_json_are_pythons():
    text = '{"a": [1, 1.5, -2e3, true, null], "b": {"\u00e9\\ud83d\\ude00": ""}}'
    expected = {"a": [1, 1.5, -2000.0, True, None], "b": {"\u00e9\U0001f600": ""}}
    assert parse(text) == parse(text.encode()) == parse(bytearray(text.encode())) == expected


def test_brackets_may_be_nested_up_to_the_depth():
    value, depth = parse("[" * DEPTH + "]" * DEPTH), 1
    while value:
        value, depth = value[0], depth + 1
    assert depth == DEPTH == 64
    nested: list = []
    for _ in range(DEPTH):
        nested = [nested]
    with pytest.raises(Malformed, match="nested deeper than 64"):
        check_texts(nested)


@pytest.mark.parametrize("value", ["\ud800", ["a", {"b": "\udc00"}], {"\ud800": 1}])
def test_half_surrogate_pairs_are_found_anywhere(value):
    with pytest.raises(Malformed, match="half a surrogate pair"):
        check_texts(value)
    check_texts(["\U0001f600", 1, None, {"a": [1.5, True]}])
