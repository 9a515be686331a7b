"""Parse the parameters of a call that change how its tokens are drawn: `TokenOptions`, as OpenAI and vLLM name them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gxpo.base.errors import MissingExtra, ModelError
from gxpo.parts.protocols import TokenOptions
from gxpo.sampling.serve.refusals import Refused

TOP = 20  # likeliest ids of a token that a call may ask for
BIASED = 1024  # ids of a `logit_bias`
CHOICES = 256  # texts of a choice
LONGEST = 1 << 16  # characters of a schema, an expression or a choice
GUIDED = {"guided_json": "json", "guided_regex": "regex", "guided_choice": "choice"}  # vLLM's names before 0.12
STRUCTURED = ("json", "regex", "choice")  # keys of vLLM's `structured_outputs`
NAMES = frozenset(
    {
        *("logit_bias", "presence_penalty", "frequency_penalty", "repetition_penalty", "min_p", "min_tokens"),
        *("ignore_eos", "top_logprobs", "response_format", "structured_outputs", *GUIDED),
    }
)


def options_of(fields: Mapping[str, Any], *, chat: bool) -> TokenOptions | None:
    """Options of a call; None: it has none. `Refused` (400) names the parameter and what to change.

    chat  False: of `/v1/completions`, whose `logprobs` is the number of likeliest ids
    """
    top_logprobs = _top_logprobs(fields, chat)
    options = TokenOptions(
        logit_bias=_logit_bias(fields.get("logit_bias", {})),
        presence_penalty=_number(fields, "presence_penalty", 0.0, -2.0, 2.0),
        frequency_penalty=_number(fields, "frequency_penalty", 0.0, -2.0, 2.0),
        repetition_penalty=_number(fields, "repetition_penalty", 1.0, 0.01, 100.0),
        min_p=_number(fields, "min_p", 0.0, 0.0, 1.0),
        min_tokens=_integer(fields, "min_tokens", 1 << 20),
        ignore_eos=_flag(fields, "ignore_eos"),
        grammar=_grammar(fields),
        top_logprobs=top_logprobs,
    )
    if options.grammar is not None and (options.ignore_eos or options.min_tokens):
        name = "ignore_eos" if options.ignore_eos else "min_tokens"
        raise Refused(
            f"{name} forbids the end of a reply, which its format may demand: leave one of them out", param=name
        )
    return None if options == TokenOptions() else options


def _number(fields: Mapping[str, Any], name: str, default: float, least: float, most: float) -> float:
    value = fields.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise Refused(f"{name} is a number from {least:g} to {most:g}", param=name)
    return float(value)


def _integer(fields: Mapping[str, Any], name: str, most: int) -> int:
    value = fields.get(name, 0)
    if type(value) is not int or not 0 <= value <= most:
        raise Refused(f"{name} is a whole number from 0 to {most}", param=name)
    return value


def _flag(fields: Mapping[str, Any], name: str) -> bool:
    value = fields.get(name, False)
    if not isinstance(value, bool):
        raise Refused(f"{name} is true or false", param=name)
    return value


def _logit_bias(value: Any) -> tuple[tuple[int, float], ...]:
    """Parse `logit_bias`: numbers from -100 to 100 by token id, which JSON writes as a text."""
    if not isinstance(value, Mapping) or len(value) > BIASED:
        raise Refused(f"logit_bias is an object of at most {BIASED} token ids with a number each", param="logit_bias")
    out: dict[int, float] = {}
    for name, number in value.items():
        is_number = isinstance(number, int | float) and not isinstance(number, bool)
        if not name.isascii() or not name.isdecimal() or len(name) > 9 or not is_number or not -100 <= number <= 100:
            raise Refused(
                f"logit_bias has {str(name)[:20]!r}: a token id, as a text of digits, has a number from -100 to 100",
                param="logit_bias",
            )
        out[int(name)] = float(number)
    return tuple(sorted(out.items()))


def _top_logprobs(fields: Mapping[str, Any], chat: bool) -> int:
    if not chat:
        value = fields.get("logprobs", 0)
        return 0 if isinstance(value, bool) else value if isinstance(value, int) and 0 <= value <= TOP else 0
    top = _integer(fields, "top_logprobs", TOP)
    if top and fields.get("logprobs") is not True:
        raise Refused("top_logprobs needs logprobs: true", param="top_logprobs")
    return top


# ---------------------------------------------------------------- formats
def _grammar(fields: Mapping[str, Any]) -> tuple[str, str] | None:
    """Grammar of `response_format`, `structured_outputs` or a `guided_...`; at most one of them may be set."""
    formats: list[tuple[str, tuple[str, str]]] = []
    if (format_ := _response_format(fields.get("response_format", {"type": "text"}))) is not None:
        formats.append(("response_format", format_))
    formats += [(name, _source(kind, fields[name], name)) for name, kind in GUIDED.items() if name in fields]
    if "structured_outputs" in fields:
        outputs = fields["structured_outputs"]
        entries = {k: v for k, v in outputs.items() if v is not None} if isinstance(outputs, Mapping) else {}
        if len(entries) != 1 or not set(entries) <= set(STRUCTURED):
            raise Refused(
                f"structured_outputs is an object with one of {', '.join(STRUCTURED)}", param="structured_outputs"
            )
        formats += [
            ("structured_outputs", _source(kind, value, "structured_outputs")) for kind, value in entries.items()
        ]
    if not formats:
        return None
    if len(formats) > 1:
        raise Refused(f"{' and '.join(name for name, _ in formats)} are both set: leave one out", param=formats[1][0])
    ((name, grammar),) = formats
    return check_grammar(grammar, name)


def check_grammar(grammar: tuple[str, str], param: str) -> tuple[str, str]:
    """The grammar, if llguidance takes it; else `Refused` with its reason."""
    from gxpo.sampling.engines.grammar import compile_grammar

    if len(grammar[1]) > LONGEST:
        raise Refused(f"{param} has more than {LONGEST} characters", param=param)
    try:
        compile_grammar(grammar)
    except MissingExtra as error:
        raise Refused(str(error), param=param, code="unsupported_parameter") from error
    except ModelError as error:
        raise Refused(f"{param} can't be followed: {error}", param=param) from error
    return grammar


def _response_format(value: Any) -> tuple[str, str] | None:
    """Parse `response_format`, also in the form of the Responses API, where the schema stands beside the type."""
    kind = value.get("type") if isinstance(value, Mapping) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return "json", '{"type": "object"}'
    if kind != "json_schema":
        raise Refused("response_format has the type text, json_object or json_schema", param="response_format")
    holder = value.get("json_schema", value)
    schema = holder.get("schema") if isinstance(holder, Mapping) else None
    if not isinstance(schema, Mapping):
        raise Refused('response_format has no {"json_schema": {"schema": {...}}}', param="response_format")
    return _source("json", schema, "response_format")


def _source(kind: str, value: Any, param: str) -> tuple[str, str]:
    """Kind and source of a grammar."""
    if kind == "json":
        try:
            schema = json.loads(value) if isinstance(value, str) else value
        except ValueError as error:
            raise Refused(f"{param} is not JSON: {error}", param=param) from error
        if not isinstance(schema, Mapping | bool):
            raise Refused(f"{param} is no JSON Schema", param=param)
        return kind, json.dumps(schema, ensure_ascii=False)
    if kind == "regex":
        if not isinstance(value, str) or not value:
            raise Refused(f"{param} is a regular expression", param=param)
        return kind, value
    is_list = isinstance(value, list) and 0 < len(value) <= CHOICES
    if not is_list or not all(isinstance(text, str) and text for text in value):
        raise Refused(f"{param} is a list of 1 to {CHOICES} texts", param=param)
    return kind, json.dumps(value, ensure_ascii=False)
