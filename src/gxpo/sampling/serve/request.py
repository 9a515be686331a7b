"""Parse bodies of `/v1/chat/completions` and `/v1/completions`: parameters used, left to the run, and refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from gxpo.parts.protocols import Message, TokenOptions
from gxpo.sampling.serve import options
from gxpo.sampling.serve.outcome import number_of, short_repr
from gxpo.sampling.serve.refusals import TOO_LONG as TOO_LONG
from gxpo.sampling.serve.refusals import Refused as Refused
from gxpo.sampling.serve.refusals import too_long as too_long
from gxpo.sampling.serve.strict_json import Malformed, parse

POLICY = "policy"  # the model's name in `/v1/models`
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
# Limits of a call; calls within them are parsed in well under a second.
SAMPLES = 128  # of all prompts together
MESSAGES = 4096
PARTS = 1024  # of a message's content; calls of a message
TOOLS = 256
STOPS = 16
LONGEST_STOP = 256  # characters
LONGEST_NAME = 256  # characters of a name or an id
LONGEST_STATE = 1 << 16  # characters
LARGEST_COUNT = 1 << 30

# The run decides how tokens are drawn: log-probs and ratios are those of its settings.
SAMPLING = ("temperature", "top_p", "top_k")
# These do not change the distribution of the text, or have no meaning here.
IGNORED = frozenset(
    {
        *("user", "store", "parallel_tool_calls", "reasoning_effort", "seed", "service_tier", "prompt_cache_key"),
        *("prompt_cache_retention", "safety_identifier", "verbosity", "prediction"),
    }
)
# Any other value would need what is not kept, or what no reply has here.
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "modalities": (["text"],),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "add_generation_prompt": (True,),
    "skip_special_tokens": (True,),
}
USED = frozenset(
    {
        *("model", "messages", "prompt", "tools", "tool_choice", "n", "stop", "max_tokens", "max_completion_tokens"),
        *("stream", "stream_options", "logprobs", "metadata", "return_token_ids", "chat_template_kwargs"),
        *("prompt_token_ids", *options.NAMES),
    }
)


# ---------------------------------------------------------------- calls
@dataclass(frozen=True)
class CallRequest:
    """Validated call of the API.

    messages   of a chat, as the client sent them; None: a completion of `prompts`, which are texts or token ids
    tools      in OpenAI's form
    parse      True if tool calls are parsed from the reply
    must_call  tools of which the reply has to call one, or `several_calls`; (): it need not call any
    n          samples of each prompt
    stop       texts that end the reply and are not part of it
    max_tokens limit on the reply; None: the run's
    options    what changes the distribution of its tokens; None: nothing
    template   variables of the chat template, beside the run's
    overridden sampling settings that the client requested and the run overrides
    agent      name of the acting agent;   state  environment state it acts in;   reward  of its action before
    echo       fields of the request that its response repeats
    """

    messages: tuple[Message, ...] | None = None
    prompts: tuple[str | tuple[int, ...], ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    parse: bool = True
    must_call: tuple[str, ...] = ()
    several_calls: bool = False
    n: int = 1
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None
    options: TokenOptions | None = None
    template: Mapping[str, Any] = field(default_factory=dict)
    logprobs: bool = False
    token_ids: bool = False
    stream: bool = False
    usage: bool = False
    model: str = POLICY
    overridden: Mapping[str, Any] = field(default_factory=dict)
    agent: str = "agent"
    state: str | None = None
    reward: float | None = None
    echo: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def order(self) -> str:
        """Sort key of an episode's concurrent calls, from their contents alone."""
        return json.dumps([self.messages, self.prompts, self.n, self.template, repr(self.options)], default=list)

    @property
    def size(self) -> int:
        """Number of samples of all prompts together."""
        return self.n * max(1, len(self.prompts))


def read(body: Any, *, chat: bool) -> CallRequest:
    """Parse a JSON body into a call; `Refused` (400) names the parameter and what to change."""
    if not isinstance(body, Mapping):
        raise Refused("the body is not a JSON object")
    # null means that a parameter is not set.
    fields = {name: value for name, value in body.items() if value is not None}
    if not chat and "prompt" not in fields and "prompt_token_ids" in fields:
        fields["prompt"] = fields.pop("prompt_token_ids")
    _check_names(fields, "messages" if chat else "prompt")
    metadata = _metadata(fields)
    model = _text(fields, "model", POLICY)
    # A model "policy/NAME" names the agent in calls without metadata.
    agent_of_model = model.removeprefix(f"{POLICY}/") if model.startswith(f"{POLICY}/") else ""
    tools, parse, must_call = _tools(fields) if chat else ((), False, ())
    most_tokens = [
        _count(fields, name, LARGEST_COUNT) for name in ("max_completion_tokens", "max_tokens") if name in fields
    ]
    prompts = () if chat else _prompts(fields["prompt"])
    n = _count(fields, "n", SAMPLES) if "n" in fields else 1
    if n * len(prompts) > SAMPLES:
        raise Refused(f"{len(prompts)} prompts times n={n} is more than {SAMPLES} samples of a call", param="prompt")
    max_tokens, stop = most_tokens[0] if most_tokens else None, _stop(fields.get("stop", ()))
    token_options = options.options_of(fields, chat=chat)
    least = token_options.min_tokens if token_options is not None else 0
    if least > (max_tokens or LARGEST_COUNT) or (least and stop):
        fault = "is above max_tokens" if not stop else "can't be kept to beside stop texts, which end a reply"
        raise Refused(f"min_tokens={least} {fault}: leave one of them out", param="min_tokens")
    return CallRequest(
        messages=_messages(fields["messages"]) if chat else None,
        prompts=prompts,
        tools=tools,
        parse=parse,
        must_call=must_call,
        several_calls=_flag(fields, "parallel_tool_calls", default=True) and fields.get("tool_choice") == "required",
        n=n,
        stop=stop,
        max_tokens=max_tokens,
        options=token_options,
        template=_template(fields, chat),
        logprobs=_logprobs(fields, chat),
        token_ids=_flag(fields, "return_token_ids"),
        stream=_flag(fields, "stream"),
        usage=_usage(fields),
        model=model,
        overridden=_overridden(fields),
        agent=metadata.get("agent") or agent_of_model or "agent",
        state=metadata.get("state") or None,
        reward=metadata.get("reward"),
    )


def _check_names(fields: Mapping[str, Any], required: str) -> None:
    """Refuse unknown parameters, and those that would make the recorded log-probs other than the sampler's."""
    for name, value in fields.items():
        if name in NEUTRAL and not any(value == x and type(value) in _types_like(x) for x in NEUTRAL[name]):
            raise Refused(
                f"{name} is not supported here: replies are new texts without special tokens, of which all are kept; "
                "leave it out",
                param=name,
                code="unsupported_parameter",
            )
        if name not in USED and name not in IGNORED and name not in NEUTRAL and name not in SAMPLING:
            short = name[:LONGEST_NAME]
            raise Refused(f"unknown parameter {short!r}: leave it out", param=short, code="unknown_parameter")
    if "prompt_token_ids" in fields:
        raise Refused(
            "prompt_token_ids has no place beside messages or a prompt: send the ids alone, to /v1/completions",
            param="prompt_token_ids",
        )
    if required not in fields:
        raise Refused(f"{required!r} is missing", param=required, code="missing_required_parameter")


def _types_like(value: Any) -> tuple[type, ...]:
    """Types in which a client may write this value: 0 or 0.0, but not false, which equals both in Python."""
    return (int, float) if type(value) is int else (type(value),)


def _overridden(fields: Mapping[str, Any]) -> dict[str, float]:
    """Requested sampling settings, which the run overrides; one that is no number is refused."""
    for name in (*SAMPLING, "seed"):
        if name in fields and not _is_number(fields[name]):
            raise Refused(f"{name} is a number", param=name)
    return {name: fields[name] for name in SAMPLING if name in fields}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _logprobs(fields: Mapping[str, Any], chat: bool) -> bool:
    """Parse `logprobs`: a flag in chats, in completions the number of likeliest ids that are listed."""
    value = fields.get("logprobs", False)
    if isinstance(value, bool):
        return value
    if chat:
        raise Refused("logprobs is true or false", param="logprobs")
    if not isinstance(value, int) or not 0 <= value <= options.TOP:
        raise Refused(f"logprobs is a number of likeliest ids, from 0 to {options.TOP}", param="logprobs")
    return True


def _template(fields: Mapping[str, Any], chat: bool) -> Mapping[str, Any]:
    """Parse `chat_template_kwargs`: variables by name."""
    variables = fields.get("chat_template_kwargs", {})
    if not isinstance(variables, Mapping) or (variables and not chat):
        raise Refused("chat_template_kwargs is an object, of a chat", param="chat_template_kwargs")
    return variables


def _usage(fields: Mapping[str, Any]) -> bool:
    """Parse `stream_options`: True if the stream ends with token counts."""
    options = fields.get("stream_options", {})
    if not isinstance(options, Mapping):
        raise Refused("stream_options is an object", param="stream_options")
    return _flag({k: v for k, v in options.items() if v is not None}, "include_usage", "stream_options.include_usage")


def _tools(fields: Mapping[str, Any]) -> tuple[tuple[Mapping[str, Any], ...], bool, tuple[str, ...]]:
    """Parse tools and `tool_choice`: the tools, True if calls are parsed from the reply, names that it must call."""
    tools = fields.get("tools", [])
    if not isinstance(tools, list) or len(tools) > TOOLS:
        raise Refused(f"tools is a list of at most {TOOLS}", param="tools")
    for i, tool in enumerate(tools):
        _check_tool(tool, f"tools[{i}]")
    choice = fields.get("tool_choice", "auto")
    names = tuple(tool["function"]["name"] for tool in tools)
    if not names and choice not in ("auto", "none") and (isinstance(choice, Mapping) or choice == "required"):
        raise Refused("tool_choice demands a call, and there are no tools", param="tool_choice")
    if isinstance(choice, Mapping):
        function = choice.get("function")
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(name, str) or name not in names:
            raise Refused(f"tool_choice names no tool of the call: {short_repr(name)}", param="tool_choice")
        return tuple(tools), True, (name,)
    if choice not in ("auto", "none", "required"):
        raise Refused("tool_choice is auto, none, required or a function", param="tool_choice")
    return tuple(tools), choice != "none", names if choice == "required" else ()


def _check_tool(tool: Any, path: str) -> None:
    """Refuse a tool that a chat template could fail on."""
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or not _is_name(function.get("name")):
        raise Refused(f'{path} is not {{"type": "function", "function": {{"name": ...}}}}', param="tools")
    if not isinstance(tool.get("type", "function"), str) or not isinstance(function.get("description") or "", str):
        raise Refused(f"{path} has a type or a description that is no text", param="tools")
    schema = function.get("parameters")
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(schema, Mapping | None) or not isinstance(properties, Mapping | None):
        raise Refused(f"{path}.function.parameters is no JSON Schema of an object", param="tools")
    for name, each in (properties or {}).items():
        if not isinstance(each, Mapping):
            raise Refused(f"{path}.function.parameters: the property {name[:80]!r} is no JSON Schema", param="tools")


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= LONGEST_NAME


def _messages(value: Any) -> tuple[Message, ...]:
    """Parse the list of messages."""
    if not isinstance(value, list) or not 0 < len(value) <= MESSAGES:
        raise Refused(f"messages is a list of 1 to {MESSAGES} messages", param="messages")
    return tuple(_message(m, f"messages[{i}]") for i, m in enumerate(value))


def _message(value: Any, path: str) -> Message:
    """Convert a message to the form of chat templates: contents are texts, arguments of tool calls are mappings."""
    role = value.get("role") if isinstance(value, Mapping) else None
    if not isinstance(role, str) or role not in ROLES:
        raise Refused(f"{path} has no role that is known: {', '.join(ROLES)}", param=path)
    message: dict[str, Any] = {"role": ROLES[role], "content": _content(value.get("content"), path)}
    for name in ("name", "tool_call_id"):
        text = value.get(name)
        if not isinstance(text, str | None) or len(text or "") > LONGEST_NAME:
            raise Refused(f"{path}.{name} is a text of at most {LONGEST_NAME} characters", param=path)
        if text is not None and message["role"] in ("user", "tool"):
            message[name] = text
    calls = value.get("tool_calls")
    if calls is not None and (not isinstance(calls, list) or len(calls) > PARTS):
        raise Refused(f"{path}.tool_calls is a list of at most {PARTS}", param=path)
    if calls:
        if message["role"] != "assistant":
            raise Refused(f"{path}.tool_calls is a list of the assistant's", param=path)
        message["tool_calls"] = [_call(c, f"{path}.tool_calls[{i}]") for i, c in enumerate(calls)]
    return message


def _content(value: Any, path: str) -> str:
    """Parse a message's content: a text, or parts of text, which are joined by newlines."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    parts = value if isinstance(value, list) else [value]
    if len(parts) > PARTS:
        raise Refused(f"{path}.content has more than {PARTS} parts", param=path)
    for part in parts:
        if not isinstance(part, Mapping) or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise Refused(f"{path}.content has a part of type {short_repr(kind)}: only text can be read", param=path)
    return "\n".join(part["text"] for part in parts)


def _call(value: Any, path: str) -> dict[str, Any]:
    """Parse a tool call that an earlier reply made and the client sends back."""
    function = value.get("function") if isinstance(value, Mapping) else None
    if not isinstance(function, Mapping) or not _is_name(function.get("name")):
        raise Refused(f"{path} has no function with a name", param=path)
    arguments = function.get("arguments")
    try:
        arguments = (
            parse(arguments) if isinstance(arguments, str) and arguments else {} if arguments == "" else arguments
        )
    except Malformed as error:
        raise Refused(f"{path}.function.arguments is not a JSON object: {error}", param=path) from error
    if not isinstance(arguments, dict | None):
        raise Refused(f"{path}.function.arguments is not a JSON object", param=path)
    name = value.get("id")
    if not isinstance(name, str | None) or len(name or "") > LONGEST_NAME:
        raise Refused(f"{path}.id is a text of at most {LONGEST_NAME} characters", param=path)
    return {"id": name or "", "name": function["name"], "arguments": arguments or {}}


def _prompts(value: Any) -> tuple[str | tuple[int, ...], ...]:
    """Parse `prompt`: a text, token ids, or a list of either."""
    prompts = [value] if isinstance(value, str) or (isinstance(value, list) and _are_ids(value)) else value
    if not isinstance(prompts, list) or not prompts or not all(isinstance(p, str) or _are_ids(p) for p in prompts):
        raise Refused("prompt is a text, token ids, or a list of them", param="prompt")
    return tuple(p if isinstance(p, str) else tuple(p) for p in prompts)


def _are_ids(value: Any) -> bool:
    """Return True for a list of token ids; `History` checks them against the vocabulary."""
    return isinstance(value, list) and bool(value) and all(type(x) is int and x >= 0 for x in value)


def _stop(value: Any) -> tuple[str, ...]:
    """Parse `stop`: a text or a list of texts."""
    texts: list[Any] = [value] if isinstance(value, str) else list(value) if isinstance(value, list | tuple) else [None]
    if len(texts) > STOPS or not all(isinstance(s, str) and 0 < len(s) <= LONGEST_STOP for s in texts):
        raise Refused(
            f"stop is a text or a list of at most {STOPS} texts, each of 1 to {LONGEST_STOP} characters", param="stop"
        )
    return tuple(texts)


def _metadata(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Parse the keys of `metadata` that are used: agent, state and reward."""
    metadata = fields.get("metadata", {})
    if not isinstance(metadata, Mapping):
        raise Refused("metadata is an object", param="metadata")
    out: dict[str, Any] = {name: x for name in ("agent", "state", "reward") if (x := metadata.get(name)) is not None}
    for name, longest in (("agent", LONGEST_NAME), ("state", LONGEST_STATE)):
        if not isinstance(out.get(name, ""), str) or len(out.get(name, "")) > longest:
            raise Refused(f"metadata.{name} is a text of at most {longest} characters", param="metadata")
    if "reward" in out:
        reward = number_of(out["reward"])
        if reward is None:
            raise Refused(f"metadata.reward is {short_repr(out['reward'])}, not a finite number", param="metadata")
        out["reward"] = reward
    return out


def _text(fields: Mapping[str, Any], name: str, default: str) -> str:
    value = fields.get(name, default)
    if not isinstance(value, str) or len(value) > LONGEST_NAME:
        raise Refused(f"{name} is a text of at most {LONGEST_NAME} characters", param=name)
    return value


def _flag(fields: Mapping[str, Any], name: str, label: str = "", default: bool = False) -> bool:
    value = fields.get(name, default)
    if not isinstance(value, bool):
        raise Refused(f"{label or name} is true or false", param=name)
    return value


def _count(fields: Mapping[str, Any], name: str, maximum: int) -> int:
    value = fields[name]
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= maximum:
        raise Refused(f"{name} is a whole number from 1 to {maximum}", param=name)
    return value
