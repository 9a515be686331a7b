"""Arguments of a call checked by the tool's JSON Schema, and results of a call as texts of bounded length."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from gxpo.base.errors import ConfigError
from gxpo.environments.rewards.metrics import schemas

FAILURES = ("timeout", "died", "unreachable")  # of the server, not of the call
OPEN = {  # keywords that may allow arguments beside `properties`
    "additionalProperties", "patternProperties", "unevaluatedProperties", "propertyNames", "allOf", "anyOf", "oneOf",
    "if", "$ref", "$dynamicRef", "dependentSchemas",
}  # fmt: skip


class Outcome(NamedTuple):
    """Outcome of a tool call.

    kind  "ok"; "invalid", it never reached the server; "error", as the tool says; "timeout"; "died", the server ended;
          "unreachable", it could not be started
    text  what the policy is shown
    """

    kind: str
    text: str


def function_schema(name: str, description: str | None, parameters: Mapping[str, Any], label: str) -> dict[str, Any]:
    """Build a tool's schema in OpenAI's function format; ConfigError for parameters that are no JSON Schema."""
    where = f"tool {name!r} of MCP server {label}"
    try:
        schemas.check_schema(parameters)
    except ConfigError as error:
        raise ConfigError(f"{where}: its input schema is {error}; leave it out of allow, or mend the server") from error
    # a call is an object of named arguments: a schema that says otherwise can't be shown to a policy
    if parameters.get("type", "object") != "object":
        raise ConfigError(f"{where}: its input schema is of type {parameters['type']!r}, not 'object'")
    function = {"name": name, "description": description or "", "parameters": dict(parameters)}
    return {"type": "function", "function": function}


def argument_error(tool: Mapping[str, Any], arguments: Mapping[str, Any]) -> str | None:
    """Explain in a line why arguments do not fit a tool's schema; None if they do.

    JSON Schema accepts unknown arguments unless it forbids them. Here they are refused where the schema names all and
    says nothing of others: servers ignore them, and a policy would never learn that they do nothing.
    """
    function = tool["function"]
    parameters = function["parameters"]
    properties = parameters.get("properties", {})
    unknown = [name for name in arguments if name not in properties]
    if unknown and OPEN.isdisjoint(parameters):
        names = ", ".join(properties) or "none"
        return f"{function['name']} has no argument {unknown[0]!r}; its arguments are {names}"
    problem = schemas.problem_of(dict(arguments), parameters)
    return None if problem is None else f"{function['name']}: {problem}"


def bounded(text: str, chars: int) -> str:
    """Cut a text to at most `chars` characters; one that is cut says so.

    >>> bounded("0123456789" * 20, 60)
    '01234567890123456789012345678901234567\\n[cut: 200 characters]'
    """
    if len(text) <= chars:
        return text
    note = f"\n[cut: {len(text)} characters]"
    return (text[: chars - len(note)] + note) if len(note) < chars else text[:chars]


def result_text(result: Any) -> str:
    """Text of a result of the SDK: its texts, a line each; what is no text is named, never dropped silently."""
    parts = [_block_text(block) for block in result.content]
    if not parts and result.structured_content is not None:
        parts = [json.dumps(result.structured_content, ensure_ascii=False)]
    return "\n".join(parts)


def _block_text(block: Any) -> str:
    if block.type == "text":
        return block.text
    if block.type == "resource" and getattr(block.resource, "text", None) is not None:
        return block.resource.text
    if block.type == "resource_link":
        return f"[resource {block.uri}]"
    kind = getattr(block, "mime_type", None) or block.type
    return f"[{kind}, which is not shown]"
