"""Replies in the shapes of OpenAI's API: whole, or as server-sent events."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gxpo.sampling.serve.history import Choice
from gxpo.sampling.serve.request import POLICY, Asked

Decode = Callable[[Sequence[int]], str]


def models() -> dict[str, Any]:
    """`/v1/models`: there is one."""
    return {"object": "list", "data": [model()]}


def model() -> dict[str, Any]:
    """What is said of the policy."""
    return {"id": POLICY, "object": "model", "created": 0, "owned_by": "gxpo"}


def body(asked: Asked, choices: Sequence[Choice], decode: Decode) -> dict[str, Any]:
    """The whole reply. With `return_token_ids` also the ids that the policy read and wrote."""
    chat = asked.messages is not None
    said = [_choice(i, choice, asked, decode) for i, choice in enumerate(choices)]
    whole = _head(asked, choices, "chat.completion" if chat else "text_completion")
    whole |= {"choices": said, "usage": _usage(asked, choices)}
    if asked.token_ids:
        whole["prompt_token_ids"] = list(choices[0].prompt.ids)
    return whole


def events(asked: Asked, choices: Sequence[Choice], decode: Decode) -> Iterator[str]:
    """The reply as server-sent events. All of it has been sampled by then: a choice comes in one piece."""
    chat = asked.messages is not None
    head = _head(asked, choices, "chat.completion.chunk" if chat else "text_completion")

    def chunk(said: list[dict[str, Any]], **more: Any) -> str:
        return f"data: {json.dumps({**head, 'choices': said, **more})}\n\n"

    for i, choice in enumerate(choices):
        whole = _choice(i, choice, asked, decode)
        finish = whole["finish_reason"]
        if not chat:
            yield chunk([whole])
            continue
        delta = dict(whole.pop("message"))
        for number, call in enumerate(delta.get("tool_calls") or ()):
            call["index"] = number
        yield chunk([{"index": i, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}])
        yield chunk([{**whole, "delta": {k: v for k, v in delta.items() if k != "role"}, "finish_reason": None}])
        yield chunk([{"index": i, "delta": {}, "finish_reason": finish}])
    if asked.usage:
        yield chunk([], usage=_usage(asked, choices))
    yield "data: [DONE]\n\n"


def _head(asked: Asked, choices: Sequence[Choice], kind: str) -> dict[str, Any]:
    return {
        "id": f"{'chatcmpl' if asked.messages is not None else 'cmpl'}-{uuid.uuid4().hex}",
        "object": kind,
        "created": int(time.time()),
        "model": asked.model,
        "system_fingerprint": f"policy-{choices[0].completion.policy_version}",
    }


def _usage(asked: Asked, choices: Sequence[Choice]) -> dict[str, int]:
    prompts = {id(c.prompt): len(c.prompt.ids) for c in choices}
    read, written = sum(prompts.values()), sum(len(c.completion.tokens) for c in choices)
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


def _choice(index: int, choice: Choice, asked: Asked, decode: Decode) -> dict[str, Any]:
    finish = "length" if choice.completion.finish == "length" else "stop"
    out: dict[str, Any] = {"index": index, "logprobs": None}
    if choice.message is None:
        out |= {"text": choice.text, "finish_reason": finish}
    else:
        calls = [_call(c) for c in choice.message.get("tool_calls", ())]
        message: dict[str, Any] = {"role": "assistant", "content": choice.text or (None if calls else "")}
        if calls:
            message["tool_calls"] = calls
        if (thought := choice.message.get("reasoning")) is not None:
            message["reasoning_content"] = thought
        out |= {"message": message, "finish_reason": "tool_calls" if calls else finish}
    if asked.logprobs:
        out["logprobs"] = _logprobs(choice, decode)
    if asked.token_ids:
        out["token_ids"] = list(choice.completion.tokens)
    return out


def _call(call: dict[str, Any]) -> dict[str, Any]:
    arguments = json.dumps(call["arguments"], ensure_ascii=False)
    return {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": arguments}}


def _logprobs(choice: Choice, decode: Decode) -> dict[str, Any]:
    texts = [decode([token]) for token in choice.completion.tokens]
    values = choice.completion.logprobs
    if choice.message is None:
        offsets = [sum(map(len, texts[:i])) for i in range(len(texts))]
        return {"tokens": texts, "token_logprobs": values, "top_logprobs": None, "text_offset": offsets}
    rows = [
        {"token": text, "logprob": x, "bytes": list(text.encode("utf-8", "replace")), "top_logprobs": []}
        for text, x in zip(texts, values, strict=True)
    ]
    return {"content": rows, "refusal": None}
