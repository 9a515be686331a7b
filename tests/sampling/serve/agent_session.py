"""A session whose policy follows a script or is a small random model, in ChatML with tools; calls of an endpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import httpx2
from tests.models.chat.families import FAMILIES, tokenizer_of

from gxpo.environments.rewards import RewardSet
from gxpo.environments.tasks.source import Arithmetic
from gxpo.models.chat import TemplateChat
from gxpo.parts.protocols import Completion, EpisodeRules, Request, Sampling, StreamKey, Task
from gxpo.sampling.engines.torch import TorchEngine
from gxpo.training.session import Session

FAMILY = FAMILIES["qwen25"]
TOKENIZER = tokenizer_of("qwen25")
CHAT = TemplateChat(TOKENIZER, FAMILY.template)
END = CHAT.stop_ids[0]
TASKS = [Task("one", "What is 1+1?", "2"), Task("two", "What is 2+2?", "4")]
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 1}}\n</tool_call>'

Say = Callable[[str, StreamKey], str]


class Script:
    """An engine that says `say(context, stream)`; token k of an action has log-prob -(k + 1) / 8.

    batches  the streams of each call; `requests`, all of them in order
    """

    policy_version = 3

    def __init__(self, say: Say) -> None:
        self.say, self.batches, self.requests, self.released = say, [], [], []

    def sample(self, requests: Sequence[Request], sampling: Sampling) -> list[list[Completion]]:
        self.batches.append([key for r in requests for key in r.streams])
        self.requests += requests
        return [[self._said(r.prompt, key, sampling) for key in r.streams] for r in requests]

    def _said(self, prompt: Sequence[int], key: StreamKey, sampling: Sampling) -> Completion:
        text = self.say(TOKENIZER.decode(list(prompt)), key)
        tokens = [*TOKENIZER(text, add_special_tokens=False).input_ids, END][: sampling.max_new_tokens]
        finish = "stop" if tokens[-1] == END else "length"
        return Completion(
            tokens, [-(k + 1) / 8 for k in range(len(tokens))], finish, policy_version=self.policy_version
        )

    def release(self, names: Sequence[str] | None = None) -> None:
        self.released += names or []


def session(say: Say | None = None, *, model: Any = None, reward: Any = None, seed: int = 0, **given: Any) -> Session:
    source = Arithmetic()
    engine = Script(say) if say is not None else TorchEngine(model, TOKENIZER)
    rollout_session = Session(
        source=source,
        engine=engine,
        rewards=RewardSet.make(reward, source=source, rollout_components=("agent",)),
        tokenizer=TOKENIZER,
        sampling=given.pop("sampling", Sampling(max_new_tokens=60)),
        seed=seed,
        step=1,
        chat=CHAT,
        episode=EpisodeRules(max_context=given.pop("max_context", 4096)),
        **given,
    )
    rollout_session.know(TASKS)
    return rollout_session


HTTP = httpx2.Client(timeout=30)


def post(base_url: str, key: str, path: str = "/chat/completions", **body: Any) -> httpx2.Response:
    return HTTP.post(base_url + path, json=body, headers={"Authorization": f"Bearer {key}"})


def ask(base_url: str, key: str, messages: Sequence[Any], **body: Any) -> dict[str, Any]:
    """The message of the first choice."""
    answer = post(base_url, key, messages=list(messages), **body)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}
