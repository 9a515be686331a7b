"""Parse bodies of `/v1/chat/completions` and `/v1/completions`: what is used, what the run decides, what is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from gxpo.parts.protocols import Message
from gxpo.sampling.serve.outcome import number_of, short_repr
from gxpo.sampling.serve.refusal import Refused
from gxpo.sampling.serve.strict_json import Malformed, parse

POLICY = "policy"  # the model's name in `/v1/models`
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
# Limits of a call. What is within them is read in well under a second.
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
# They change nothing of the text's distribution, or can't be known here.
IGNORED = frozenset(
    {
        *("user", "store", "parallel_tool_calls", "reasoning_effort", "seed", "service_tier", "prompt_cache_key"),
        *("prompt_cache_retention", "safety_identifier", "verbosity"),
    }
)
# Anything but this value would change the distribution, or ask for what the engine does not keep.
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "min_p": (0,),
    "logit_bias": ({},),
    "response_format": ({"type": "text"},),
    "top_logprobs": (0,),
    "modalities": (["text"],),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
}
USED = frozenset(
    {
        *("model", "messages", "prompt", "tools", "tool_choice", "n", "stop", "max_tokens", "max_completion_tokens"),
        *("stream", "stream_options", "logprobs", "metadata", "return_token_ids"),
    }
)


@dataclass(frozen=True)
class Asked:
    """A call, checked.

    messages   of a chat, as the client sent them; None: `prompts` are to be continued, texts or token ids
    tools      in OpenAI's form
    parse      whether calls of tools are read out of the reply
    n          samples of each prompt
    stop       texts that end the reply; they are not in it
    max_tokens tokens of the reply at most; None: as many as the run allows
    overridden sampling settings that the client asked for, and that the run decides
    agent      who speaks; `state`, what the action is taken in; `reward`, of the action before
    """

    messages: tuple[Message, ...] | None = None
    prompts: tuple[str | tuple[int, ...], ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    parse: bool = True
    n: int = 1
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None
    logprobs: bool = False
    token_ids: bool = False
    stream: bool = False
    usage: bool = False
    model: str = POLICY
    overridden: Mapping[str, Any] = field(default_factory=dict)
    agent: str = "agent"
    state: str | None = None
    reward: float | None = None

    @cached_property
    def order(self) -> str:
        """What calls of one episode that came together are sorted by."""
        return json.dumps([self.messages, self.prompts, self.n], default=list)

    @property
    def size(self) -> int:
        """Samples in all."""
        return self.n * max(1, len(self.prompts))


def read(body: Any, *, chat: bool) -> Asked:
    """The call in a JSON body; `Refused` (400) names the parameter and what to change."""
    if not isinstance(body, Mapping):
        raise Refused("the body is not a JSON object")
    given = {name: value for name, value in body.items() if value is not None}
    _check_names(given, "messages" if chat else "prompt")
    metadata = _metadata(given)
    model = _text(given, "model", POLICY)
    named = model.removeprefix(f"{POLICY}/") if model.startswith(f"{POLICY}/") else ""
    tools, parse = _tools(given) if chat else ((), False)
    most_tokens = [
        _count(given, name, LARGEST_COUNT) for name in ("max_completion_tokens", "max_tokens") if name in given
    ]
    prompts = () if chat else _prompts(given["prompt"])
    n = _count(given, "n", SAMPLES) if "n" in given else 1
    if n * len(prompts) > SAMPLES:
        raise Refused(f"{len(prompts)} prompts times n={n} is more than {SAMPLES} samples of a call", param="prompt")
    return Asked(
        messages=_messages(given["messages"]) if chat else None,
        prompts=prompts,
        tools=tools,
        parse=parse,
        n=n,
        stop=_stop(given.get("stop", ())),
        max_tokens=most_tokens[0] if most_tokens else None,
        logprobs=_logprobs(given, chat),
        token_ids=_flag(given, "return_token_ids"),
        stream=_flag(given, "stream"),
        usage=_usage(given),
        model=model,
        overridden=_overridden(given),
        agent=metadata.get("agent") or named or "agent",
        state=metadata.get("state") or None,
        reward=metadata.get("reward"),
    )


def _check_names(given: Mapping[str, Any], needed: str) -> None:
    """Refuses what is not known, and what would break the ratios that training computes."""
    for name, value in given.items():
        if name in NEUTRAL and not any(value == x and type(value) in _types_like(x) for x in NEUTRAL[name]):
            raise Refused(
                f"{name} is not supported here: it changes what is sampled, or needs what is not kept; leave it out",
                param=name,
                code="unsupported_parameter",
            )
        if name not in USED and name not in IGNORED and name not in NEUTRAL and name not in SAMPLING:
            more = "; set chat.kwargs in the run's configuration" if name == "chat_template_kwargs" else ""
            short = name[:LONGEST_NAME]
            raise Refused(f"unknown parameter {short!r}: leave it out{more}", param=short, code="unknown_parameter")
    if needed not in given:
        raise Refused(f"{needed!r} is missing", param=needed, code="missing_required_parameter")


def _types_like(value: Any) -> tuple[type, ...]:
    """Types that write the value in JSON: 0 and 0.0 are equal, and so is false, which is another thing."""
    return (int, float) if type(value) is int else (type(value),)


def _overridden(given: Mapping[str, Any]) -> dict[str, float]:
    """Settings of sampling, which are the run's to decide."""
    for name in (*SAMPLING, "seed"):
        if name in given and not _is_number(given[name]):
            raise Refused(f"{name} is a number", param=name)
    return {name: given[name] for name in SAMPLING if name in given}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _logprobs(given: Mapping[str, Any], chat: bool) -> bool:
    """A flag of chats, and of completions the number of alternatives, of which there are none."""
    value = given.get("logprobs", False)
    if isinstance(value, bool):
        return value
    if chat:
        raise Refused("logprobs is true or false", param="logprobs")
    if not isinstance(value, int) or not 0 <= value <= 1:
        raise Refused("logprobs is 0 or 1: only the sampled token's log-prob is kept", param="logprobs")
    return True


def _usage(given: Mapping[str, Any]) -> bool:
    options = given.get("stream_options", {})
    if not isinstance(options, Mapping):
        raise Refused("stream_options is an object", param="stream_options")
    return _flag({k: v for k, v in options.items() if v is not None}, "include_usage", "stream_options.include_usage")


def _tools(given: Mapping[str, Any]) -> tuple[tuple[Mapping[str, Any], ...], bool]:
    """Tools, and whether calls are read. A call can't be forced: "required" and a named tool are as "auto"."""
    tools = given.get("tools", [])
    if not isinstance(tools, list) or len(tools) > TOOLS:
        raise Refused(f"tools is a list of at most {TOOLS}", param="tools")
    for i, tool in enumerate(tools):
        _check_tool(tool, f"tools[{i}]")
    choice = given.get("tool_choice", "auto")
    if not isinstance(choice, Mapping) and choice not in ("auto", "none", "required"):
        raise Refused("tool_choice is auto, none, required or a function", param="tool_choice")
    return tuple(tools), choice != "none"


def _check_tool(tool: Any, where: str) -> None:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or not _is_name(function.get("name")):
        raise Refused(f'{where} is not {{"type": "function", "function": {{"name": ...}}}}', param="tools")
    if not isinstance(tool.get("type", "function"), str) or not isinstance(function.get("description") or "", str):
        raise Refused(f"{where} has a type or a description that is no text", param="tools")
    schema = function.get("parameters")
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(schema, Mapping | None) or not isinstance(properties, Mapping | None):
        raise Refused(f"{where}.function.parameters is no JSON Schema of an object", param="tools")
    for name, each in (properties or {}).items():
        if not isinstance(each, Mapping):
            raise Refused(f"{where}.function.parameters: the property {name[:80]!r} is no JSON Schema", param="tools")


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= LONGEST_NAME


def _messages(given: Any) -> tuple[Message, ...]:
    if not isinstance(given, list) or not 0 < len(given) <= MESSAGES:
        raise Refused(f"messages is a list of 1 to {MESSAGES} messages", param="messages")
    return tuple(_message(m, f"messages[{i}]") for i, m in enumerate(given))


def _message(given: Any, where: str) -> Message:
    """A message in the form that chat templates know: contents are texts, arguments of calls are mappings."""
    role = given.get("role") if isinstance(given, Mapping) else None
    if not isinstance(role, str) or role not in ROLES:
        raise Refused(f"{where} has no role that is known: {', '.join(ROLES)}", param=where)
    message: dict[str, Any] = {"role": ROLES[role], "content": _content(given.get("content"), where)}
    for name in ("name", "tool_call_id"):
        value = given.get(name)
        if not isinstance(value, str | None) or len(value or "") > LONGEST_NAME:
            raise Refused(f"{where}.{name} is a text of at most {LONGEST_NAME} characters", param=where)
        if value is not None and message["role"] in ("user", "tool"):
            message[name] = value
    calls = given.get("tool_calls")
    if calls is not None and (not isinstance(calls, list) or len(calls) > PARTS):
        raise Refused(f"{where}.tool_calls is a list of at most {PARTS}", param=where)
    if calls:
        if message["role"] != "assistant":
            raise Refused(f"{where}.tool_calls is a list of the assistant's", param=where)
        message["tool_calls"] = [_call(c, f"{where}.tool_calls[{i}]") for i, c in enumerate(calls)]
    return message


def _content(given: Any, where: str) -> str:
    """A text; parts of text are joined by newlines."""
    if given is None:
        return ""
    if isinstance(given, str):
        return given
    parts = given if isinstance(given, list) else [given]
    if len(parts) > PARTS:
        raise Refused(f"{where}.content has more than {PARTS} parts", param=where)
    for part in parts:
        if not isinstance(part, Mapping) or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise Refused(f"{where}.content has a part of type {short_repr(kind)}: only text can be read", param=where)
    return "\n".join(part["text"] for part in parts)


def _call(given: Any, where: str) -> dict[str, Any]:
    function = given.get("function") if isinstance(given, Mapping) else None
    if not isinstance(function, Mapping) or not _is_name(function.get("name")):
        raise Refused(f"{where} has no function with a name", param=where)
    arguments = function.get("arguments")
    try:
        arguments = (
            parse(arguments) if isinstance(arguments, str) and arguments else {} if arguments == "" else arguments
        )
    except Malformed as error:
        raise Refused(f"{where}.function.arguments is not a JSON object: {error}", param=where) from error
    if not isinstance(arguments, dict | None):
        raise Refused(f"{where}.function.arguments is not a JSON object", param=where)
    name = given.get("id")
    if not isinstance(name, str | None) or len(name or "") > LONGEST_NAME:
        raise Refused(f"{where}.id is a text of at most {LONGEST_NAME} characters", param=where)
    return {"id": name or "", "name": function["name"], "arguments": arguments or {}}


def _prompts(given: Any) -> tuple[str | tuple[int, ...], ...]:
    """A text, token ids, or a list of either."""
    prompts = [given] if isinstance(given, str) or (isinstance(given, list) and _are_ids(given)) else given
    if not isinstance(prompts, list) or not prompts or not all(isinstance(p, str) or _are_ids(p) for p in prompts):
        raise Refused("prompt is a text, token ids, or a list of them", param="prompt")
    return tuple(p if isinstance(p, str) else tuple(p) for p in prompts)


def _are_ids(given: Any) -> bool:
    """Tell token ids from anything else; `History` knows how many there are."""
    return isinstance(given, list) and bool(given) and all(type(x) is int and x >= 0 for x in given)


def _stop(given: Any) -> tuple[str, ...]:
    texts: list[Any] = [given] if isinstance(given, str) else list(given) if isinstance(given, list | tuple) else [None]
    if len(texts) > STOPS or not all(isinstance(s, str) and 0 < len(s) <= LONGEST_STOP for s in texts):
        raise Refused(
            f"stop is a text or a list of at most {STOPS} texts, each of 1 to {LONGEST_STOP} characters", param="stop"
        )
    return tuple(texts)


def _metadata(given: Mapping[str, Any]) -> dict[str, Any]:
    """The part of `metadata` that is read here: a name, a state, a number."""
    metadata = given.get("metadata", {})
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


def _text(given: Mapping[str, Any], name: str, default: str) -> str:
    value = given.get(name, default)
    if not isinstance(value, str) or len(value) > LONGEST_NAME:
        raise Refused(f"{name} is a text of at most {LONGEST_NAME} characters", param=name)
    return value


def _flag(given: Mapping[str, Any], name: str, label: str = "") -> bool:
    value = given.get(name, False)
    if not isinstance(value, bool):
        raise Refused(f"{label or name} is true or false", param=name)
    return value


def _count(given: Mapping[str, Any], name: str, most: int) -> int:
    value = given[name]
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise Refused(f"{name} is a whole number from 1 to {most}", param=name)
    return value
