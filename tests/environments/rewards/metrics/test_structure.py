"""JSON metric: keys, types and values, with and without a schema."""

from __future__ import annotations

import json

import pytest

from gxpo.base.errors import ConfigError
from gxpo.environments.rewards.metrics import Unreadable
from gxpo.environments.rewards.metrics.structure import json_schema

close = lambda x: pytest.approx(x, abs=1e-6)  # noqa: E731


# ---------------------------------------------------------------- JSON
def test_the_cards_json_number():
    # parses; 2 of 3 keys; both of the right type, of 3; 1 of 3 values: .2 + .2 + .133333 + .1
    gold = json.dumps({"name": "x", "age": 3, "tags": []})
    assert json_schema('{"name": "x", "age": 4}', gold) == close(0.633333)
    assert json_schema(gold, gold) == close(1.0) and json_schema("[]", gold) == close(0.2)


def test_more_of_the_structure_never_earns_less():
    gold = {"a": 1, "b": {"c": "x", "d": True}}
    answers = ['{"z": 0}', '{"a": "1"}', '{"a": 2}', '{"a": 1}', '{"a": 1, "b": {"c": "x"}}', json.dumps(gold)]
    worth = [json_schema(text, gold) for text in answers]
    assert worth == sorted(worth) and worth[0] == close(0.2) and worth[-1] == close(1.0) and len(set(worth)) == 6
    assert json_schema('{"a": true, "b": {}}', {"a": 1}) == close(0.2 + 0.3)  # true is no number


def test_json_by_a_schema():
    schema = {
        "type": "object",
        "properties": {
            "n": {"type": "integer", "minimum": 0},
            "kind": {"enum": ["a", "b"]},
            "note": {"type": "string"},
        },
        "required": ["n", "kind"],
    }
    assert json_schema('{"n": 1, "kind": "a"}', None, schema=schema) == close(1.0)
    # both keys, one fits; no values are asked: (.2 + .3 + .2 / 2) / .7
    assert json_schema('{"n": -1, "kind": "a"}', None, schema=schema) == close(0.6 / 0.7)
    nested = {"properties": {"p": {"properties": {"q": {"$ref": "#/$defs/t"}}}}, "$defs": {"t": {"type": "string"}}}
    assert json_schema('{"p": {"q": "x"}}', None, schema=nested) == close(1.0)
    assert json_schema('{"p": {"q": 1}}', None, schema=nested) == close(0.5 / 0.7)
    with pytest.raises(ConfigError, match="no JSON Schema"):
        json_schema("{}", None, schema={"type": 3, "properties": {"a": {}}})


@pytest.mark.parametrize("text", ["", "{", "{'a': 1}", "NaN", "here: {}", "[" * 100_000, '{"a": 1} {"a": 1}'])
def test_what_is_no_json_cannot_be_read(text):
    with pytest.raises(Unreadable):
        json_schema(text, {"a": 1})


def test_one_fenced_block_is_read():
    assert json_schema('```json\n{"a": 1}\n```', {"a": 1}) == close(1.0)
