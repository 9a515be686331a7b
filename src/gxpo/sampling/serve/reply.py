"""Responses in the format of OpenAI's API: as one body, or as server-sent events."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gxpo.parts.protocols import Completion
from gxpo.sampling.serve.history import Choice
from gxpo.sampling.serve.request import POLICY, CallRequest

Decode = Callable[[Sequence[int]], str]


def models() -> dict[str, Any]:
    """Body of `/v1/models`, a list of one."""
    return {"object": "list", "data": [model()]}


def model() -> dict[str, Any]:
    """Entry of the policy in `/v1/models`."""
    return {"id": POLICY, "object": "model", "created": 0, "owned_by": "gxpo"}


def body(request: CallRequest, choices: Sequence[Choice], decode: Decode) -> dict[str, Any]:
    """Body of a response; with `return_token_ids`, prompt and sampled ids are included."""
    chat = request.messages is not None
    choice_bodies = [_choice(i, choice, request, decode) for i, choice in enumerate(choices)]
    response = _head(request, choices, "chat.completion" if chat else "text_completion")
    response |= {"choices": choice_bodies, "usage": _usage(request, choices)}
    if request.token_ids:
        response["prompt_token_ids"] = list(choices[0].prompt.ids)
    return response


def events(request: CallRequest, choices: Sequence[Choice], decode: Decode) -> Iterator[str]:
    """Server-sent events of a response; sampling is complete by then, so each choice comes in one piece."""
    chat = request.messages is not None
    head = _head(request, choices, "chat.completion.chunk" if chat else "text_completion")

    def chunk(choices: list[dict[str, Any]], **more: Any) -> str:
        return f"data: {json.dumps({**head, 'choices': choices, **more})}\n\n"

    for i, choice in enumerate(choices):
        choice_body = _choice(i, choice, request, decode)
        finish = choice_body["finish_reason"]
        if not chat:
            yield chunk([choice_body])
            continue
        # Clients expect a role first, then content, then the finish reason in a delta without content.
        delta = dict(choice_body.pop("message"))
        for number, call in enumerate(delta.get("tool_calls") or ()):
            call["index"] = number
        ids = {"prompt_token_ids": list(choice.prompt.ids)} if request.token_ids and i == 0 else {}
        yield chunk([{"index": i, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}], **ids)
        yield chunk([{**choice_body, "delta": {k: v for k, v in delta.items() if k != "role"}, "finish_reason": None}])
        yield chunk([{"index": i, "delta": {}, "finish_reason": finish}])
    if request.usage:
        yield chunk([], usage=_usage(request, choices))
    yield "data: [DONE]\n\n"


def _head(request: CallRequest, choices: Sequence[Choice], kind: str) -> dict[str, Any]:
    """Fields that every body and event begins with."""
    return {
        "id": f"{'chatcmpl' if request.messages is not None else 'cmpl'}-{uuid.uuid4().hex}",
        "object": kind,
        "created": int(time.time()),
        "model": request.model,
        "system_fingerprint": f"policy-{choices[0].completion.policy_version}",
    }


def _usage(request: CallRequest, choices: Sequence[Choice]) -> dict[str, int]:
    """Token counts; prompts that several samples share count once."""
    prompts = {id(c.prompt): len(c.prompt.ids) for c in choices}
    n_prompt, n_completion = sum(prompts.values()), sum(len(c.completion.tokens) for c in choices)
    return {"prompt_tokens": n_prompt, "completion_tokens": n_completion, "total_tokens": n_prompt + n_completion}


def _choice(index: int, choice: Choice, request: CallRequest, decode: Decode) -> dict[str, Any]:
    """Entry of `choices` for one sample."""
    finish = "length" if choice.completion.finish == "length" else "stop"
    out: dict[str, Any] = {"index": index, "logprobs": None}
    if choice.message is None:
        out |= {"text": choice.text, "finish_reason": finish}
    else:
        calls = [_call(c) for c in choice.message.get("tool_calls", ())]
        message: dict[str, Any] = {"role": "assistant", "content": choice.text or (None if calls else "")}
        if calls:
            message["tool_calls"] = calls
        if (reasoning := choice.message.get("reasoning")) is not None:
            message["reasoning_content"] = reasoning
        out |= {"message": message, "finish_reason": "tool_calls" if calls else finish}
    if request.logprobs:
        out["logprobs"] = _logprobs(choice, decode)
    if request.token_ids:
        out["token_ids"] = list(choice.completion.tokens)
        if choice.message is None:  # where vLLM has them in completions
            out["prompt_token_ids"] = list(choice.prompt.ids)
    return out


def _call(call: dict[str, Any]) -> dict[str, Any]:
    """Tool call in OpenAI's format, its arguments as JSON text."""
    arguments = json.dumps(call["arguments"], ensure_ascii=False)
    return {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": arguments}}


def _logprobs(choice: Choice, decode: Decode) -> dict[str, Any]:
    """Log-probs of the sampled tokens, in the format of chats or of completions."""
    texts = [decode([token]) for token in choice.completion.tokens]
    values = choice.completion.logprobs
    if choice.message is None:
        offsets = [sum(map(len, texts[:i])) for i in range(len(texts))]
        tops = None
        if choice.completion.top_ids is not None:
            rows = alternatives(choice.completion, decode)
            tops = [
                {**{text: x for text, x in reversed(row)}, token_text: value}
                for row, token_text, value in zip(rows, texts, values, strict=True)
            ]
        return {"tokens": texts, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets}
    return {"content": token_logprobs(choice, decode), "refusal": None}


def token_logprobs(choice: Choice, decode: Decode) -> list[dict[str, Any]]:
    """Log-probs of the sampled tokens as rows: text, log-prob, UTF-8, and the likeliest tokens if asked for."""
    completion = choice.completion
    tops = alternatives(completion, decode) or [[]] * len(completion.tokens)
    rows = (
        (decode([token]), x, top) for token, x, top in zip(completion.tokens, completion.logprobs, tops, strict=True)
    )
    return [{**_token_row(text, x), "top_logprobs": [_token_row(*each) for each in top]} for text, x, top in rows]


def _token_row(text: str, logprob: float) -> dict[str, Any]:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode("utf-8", "replace"))}


def alternatives(completion: Completion, decode: Decode) -> list[list[tuple[str, float]]]:
    """Texts and log-probs of each token's likeliest ids, most likely first; ids of no probability are left out."""
    if completion.top_ids is None or completion.top_logprobs is None:
        return []
    return [
        [(decode([i]), x) for i, x in zip(ids, logprobs, strict=True) if i >= 0]
        for ids, logprobs in zip(completion.top_ids.tolist(), completion.top_logprobs.tolist(), strict=True)
    ]
