"""Parse bodies of `/v1/chat/completions` and `/v1/completions`: what is used, what the run decides, what is refused."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from gxpo.protocols import Message
from gxpo.serve.refusal import Refused

POLICY = "policy"  # the model's name in `/v1/models`
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
MOST = 128  # of `n`

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
    metadata = _metadata(given.get("metadata", {}))
    model = _text(given, "model", POLICY)
    named = model.removeprefix(f"{POLICY}/") if model.startswith(f"{POLICY}/") else ""
    tools, parse = _tools(given) if chat else ((), False)
    asked = given.get("max_completion_tokens", given.get("max_tokens"))
    logprobs = given.get("logprobs", False)
    if not chat and isinstance(logprobs, int) and logprobs > 1:
        raise Refused("logprobs is at most 1: only the sampled token's log-prob is kept", param="logprobs")
    return Asked(
        messages=_messages(given.get("messages")) if chat else None,
        prompts=() if chat else _prompts(given.get("prompt")),
        tools=tools,
        parse=parse,
        n=_count(given, "n", 1, MOST),
        stop=_stop(given.get("stop", ())),
        max_tokens=None if asked is None else _count({"max_tokens": asked}, "max_tokens", 1, 1 << 30),
        logprobs=logprobs is not False,
        token_ids=_flag(given, "return_token_ids"),
        stream=_flag(given, "stream"),
        usage=isinstance(given.get("stream_options"), Mapping) and bool(given["stream_options"].get("include_usage")),
        model=model,
        overridden={name: given[name] for name in SAMPLING if name in given},
        agent=metadata.get("agent", "") or named or "agent",
        state=metadata.get("state"),
        reward=_number(metadata["reward"]) if "reward" in metadata else None,
    )


def _check_names(given: Mapping[str, Any], needed: str) -> None:
    """Refuses what is not known, and what would break the ratios that training computes."""
    for name, value in given.items():
        if name in NEUTRAL and value not in NEUTRAL[name]:
            raise Refused(
                f"{name} is not supported here: it changes what is sampled, or needs what is not kept; leave it out",
                param=name,
                code="unsupported_parameter",
            )
        if name not in USED and name not in IGNORED and name not in NEUTRAL and name not in SAMPLING:
            more = "; set chat.kwargs in the run's configuration" if name == "chat_template_kwargs" else ""
            raise Refused(f"unknown parameter {name!r}: leave it out{more}", param=name, code="unknown_parameter")
    if needed not in given:
        raise Refused(f"{needed!r} is missing", param=needed, code="missing_required_parameter")


def _tools(given: Mapping[str, Any]) -> tuple[tuple[Mapping[str, Any], ...], bool]:
    """Tools, and whether calls are read. A call can't be forced: "required" and a named tool are as "auto"."""
    tools = given.get("tools", [])
    if not isinstance(tools, Sequence) or isinstance(tools, str):
        raise Refused("tools is a list", param="tools")
    for tool in tools:
        inner = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(inner, Mapping) or not isinstance(inner.get("name"), str):
            raise Refused('a tool is {"type": "function", "function": {"name": ...}}', param="tools")
    choice = given.get("tool_choice", "auto")
    if not isinstance(choice, Mapping) and choice not in ("auto", "none", "required"):
        raise Refused("tool_choice is auto, none, required or a function", param="tool_choice")
    return tuple(tools), choice != "none"


def _messages(given: Any) -> tuple[Message, ...]:
    if not isinstance(given, list) or not given:
        raise Refused("messages is a list that is not empty", param="messages")
    return tuple(_message(m, f"messages[{i}]") for i, m in enumerate(given))


def _message(given: Any, where: str) -> Message:
    """A message in the form that chat templates know: contents are texts, arguments of calls are mappings."""
    if not isinstance(given, Mapping) or given.get("role") not in ROLES:
        raise Refused(f"{where} has no role that is known: {', '.join(ROLES)}", param=where)
    message: dict[str, Any] = {"role": ROLES[given["role"]], "content": _content(given.get("content"), where)}
    for name in ("name", "tool_call_id"):
        if isinstance(given.get(name), str) and message["role"] in ("user", "tool"):
            message[name] = given[name]
    if calls := given.get("tool_calls"):
        if message["role"] != "assistant" or not isinstance(calls, list):
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
    for part in parts:
        if not isinstance(part, Mapping) or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise Refused(f"{where}.content has a part of type {kind!r}: only text can be read", param=where)
    return "\n".join(part["text"] for part in parts)


def _call(given: Any, where: str) -> dict[str, Any]:
    function = given.get("function") if isinstance(given, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise Refused(f"{where} has no function with a name", param=where)
    arguments = function.get("arguments") or "{}"
    try:
        arguments = json.loads(arguments) if isinstance(arguments, str) else dict(arguments)
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise Refused(f"{where}.function.arguments is not a JSON object", param=where)
    return {"id": str(given.get("id") or ""), "name": function["name"], "arguments": arguments}


def _prompts(given: Any) -> tuple[str | tuple[int, ...], ...]:
    """A text, token ids, or a list of either."""
    whole = isinstance(given, str) or (isinstance(given, list) and given and all(isinstance(x, int) for x in given))
    found = [given] if whole else given
    if not isinstance(found, list) or not found:
        raise Refused("prompt is a text, token ids, or a list of them", param="prompt")
    for prompt in found:
        ids = isinstance(prompt, list) and prompt and all(isinstance(x, int) and x >= 0 for x in prompt)
        if not ids and not isinstance(prompt, str):
            raise Refused("prompt is a text, token ids, or a list of them", param="prompt")
    return tuple(p if isinstance(p, str) else tuple(p) for p in found)


def _stop(given: Any) -> tuple[str, ...]:
    found = [given] if isinstance(given, str) else list(given)
    if not all(isinstance(s, str) and s for s in found):
        raise Refused("stop is a text or a list of texts that are not empty", param="stop")
    return tuple(found)


def _metadata(given: Any) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise Refused("metadata is an object", param="metadata")
    return given


def _number(given: Any) -> float:
    try:
        value = float(given)
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise Refused(f"metadata.reward is {given!r}, not a finite number", param="metadata")
    return value


def _text(given: Mapping[str, Any], name: str, default: str) -> str:
    value = given.get(name, default)
    if not isinstance(value, str):
        raise Refused(f"{name} is a text", param=name)
    return value


def _flag(given: Mapping[str, Any], name: str) -> bool:
    value = given.get(name, False)
    if not isinstance(value, bool):
        raise Refused(f"{name} is true or false", param=name)
    return value


def _count(given: Mapping[str, Any], name: str, default: int, most: int) -> int:
    value = given.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise Refused(f"{name} is a whole number from 1 to {most}", param=name)
    return value
