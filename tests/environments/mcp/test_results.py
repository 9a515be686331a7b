"""Arguments against a tool's schema, and results as texts of bounded length."""

from __future__ import annotations

from types import SimpleNamespace as Block

import pytest

from gxpo.base.errors import ConfigError
from gxpo.environments.mcp.results import argument_error, bounded, function_schema, result_text

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "unit": {"enum": ["m", "km"]}},
    "required": ["a"],
}
TOOL = function_schema("length", "A length.", SCHEMA, "server")


def test_a_tool_is_shown_in_openais_form():
    assert TOOL == {
        "type": "function",
        "function": {"name": "length", "description": "A length.", "parameters": SCHEMA},
    }


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "objekt"}, "'objekt' is not valid"),
        ({"type": "object", "properties": {"a": {"$ref": "https://elsewhere.org/a.json"}}}, "leads to nothing in it"),
        ({"type": "array"}, "of type 'array', not 'object'"),
    ],
)
def test_a_bad_schema_is_refused_with_the_tools_name(schema, message):
    with pytest.raises(ConfigError, match="tool 'length' of MCP server s") as error:
        function_schema("length", None, schema, "s")
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"a": 3}, None),
        ({"a": 3, "unit": "km"}, None),
        ({}, "length: 'a' is a required property"),
        ({"a": "3"}, "length: a: '3' is not of type 'integer'"),
        ({"a": 3, "unit": "mile"}, "length: unit: 'mile' is not one of ['m', 'km']"),
        ({"a": 3, "b": 4}, "length has no argument 'b'; its arguments are a, unit"),
    ],
)
def test_arguments_are_checked_by_the_schema(arguments, message):
    assert argument_error(TOOL, arguments) == message


def test_further_arguments_pass_where_the_schema_allows_them():
    open_tool = function_schema("f", "", {**SCHEMA, "additionalProperties": {"type": "string"}}, "s")
    assert argument_error(open_tool, {"a": 1, "b": "x"}) is None
    assert argument_error(open_tool, {"a": 1, "b": 2}) == "f: b: 2 is not of type 'string'"


@pytest.mark.parametrize("chars", [1, 10, 40, 100])
def test_a_long_text_is_cut_to_the_limit(chars):
    assert len(bounded("ab" * 100, chars)) == chars and bounded("ab" * 100, 200) == "ab" * 100


def test_blocks_that_are_no_text_are_named():
    text, image = Block(type="text", text="one"), Block(type="image", mime_type="image/png", data="")
    inner = Block(type="resource", resource=Block(text="two"))
    link, sound = Block(type="resource_link", uri="file:///x"), Block(type="audio")
    assert result_text(Block(content=[text, image, inner, link, sound], structured_content=None)).split("\n") == [
        "one", "[image/png, which is not shown]", "two", "[resource file:///x]", "[audio, which is not shown]",
    ]  # fmt: skip
    assert result_text(Block(content=[], structured_content={"a": 1})) == '{"a": 1}'
    assert result_text(Block(content=[], structured_content=None)) == ""
