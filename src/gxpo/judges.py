"""Who answers a question about a text: any callable, an OpenAI-compatible server, a local language model."""

from __future__ import annotations

import http.client
import json
import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import urlparse

from gxpo.errors import ConfigError
from gxpo.tokens import Tokens
from gxpo.usercode import described, one_line

Messages = Sequence[Mapping[str, str]]  # {"role": "system" | "user" | "assistant", "content": ...}
Failure = tuple[str, str]  # ("raised" | "timeout" | "died" | "nonsense", message)
RETRIED = (408, 409, 425, 429, 500, 502, 503, 504)  # answers of a server that may be another one next time


class JudgeFailure(Exception):
    """A judge gave no answer. `kind`: "raised" or "timeout". Whoever asked is unscored."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Judge(Protocol):
    """Answers in text. Called from several threads at once; `JudgeFailure` where it can't."""

    def ask(self, messages: Messages) -> str: ...


def ask_all(judge: Judge, questions: Sequence[Messages], workers: int) -> list[str | Failure]:
    """The answer to each question, or why there is none; `workers` are asked at a time, equal ones each by itself."""

    def ask(question: Messages) -> str | Failure:
        try:
            return judge.ask(question)
        except JudgeFailure as error:
            return (error.kind, str(error))

    with ThreadPoolExecutor(max(1, workers)) as threads:
        return list(threads.map(ask, questions))


@dataclass(frozen=True)
class FunctionJudge:
    """A function of messages that returns a text. It runs in this process, without a time limit."""

    function: Callable[[Messages], str]

    def ask(self, messages: Messages) -> str:
        try:
            answer = self.function(messages)
        except Exception as error:
            raise JudgeFailure("raised", described(error)) from error
        if not isinstance(answer, str):
            raise JudgeFailure("raised", one_line(f"returned {answer!r}, not a text"))
        return answer


@dataclass(frozen=True)
class Server:
    """The chat completions of an OpenAI-compatible server (vLLM, llama.cpp, Ollama, hosted ones).

    url         what stands before /chat/completions, as http://localhost:8000/v1
    model       as the server calls it
    key_from    environment variable that holds the key; without it none is sent
    timeout     seconds for one attempt;   retries  further attempts where the server is busy, broken or gone
    backoff     seconds before the first of them, doubled for each, at most 30 (a Retry-After is followed up to that)
    """

    url: str
    model: str
    key_from: str = "OPENAI_API_KEY"
    temperature: float = 0.0
    max_tokens: int = 256
    timeout: float = 60.0
    retries: int = 3
    backoff: float = 1.0

    def __post_init__(self) -> None:
        parts = urlparse(self.url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ConfigError(f"judge: server={self.url!r} is no address; give one as http://localhost:8000/v1")
        if not self.model:
            raise ConfigError("judge: say which model of the server answers (model=...)")
        if not self.timeout > 0 or self.retries < 0 or self.backoff < 0:
            raise ConfigError("judge: timeout must be above 0, retries and backoff at least 0")

    def ask(self, messages: Messages) -> str:
        wait = self.backoff
        for attempt in range(self.retries + 1):
            try:
                return self._post(messages)
            except _Again as error:
                if attempt == self.retries:
                    tried = f" (tried {attempt + 1} times)" if attempt else ""
                    raise JudgeFailure(error.kind, f"{error}{tried}") from error
                time.sleep(min(30.0, max(wait, error.after)))
                wait *= 2
        raise AssertionError("unreachable")

    def _post(self, messages: Messages) -> str:
        body = {"model": self.model, "messages": [dict(m) for m in messages],
                "temperature": self.temperature, "max_tokens": self.max_tokens}  # fmt: skip
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get(self.key_from):
            headers["Authorization"] = f"Bearer {key}"
        request = urllib.request.Request(
            f"{self.url.rstrip('/')}/chat/completions", json.dumps(body).encode(), headers, method="POST"
        )
        try:
            with urllib.request.urlopen(request, timeout=self.timeout) as answer:
                said = answer.read(1 << 22)
        except urllib.error.HTTPError as error:
            text = one_line(error.read(400).decode("utf-8", "replace"))
            message = f"{self.url} answers {error.code}: {text}"
            if error.code not in RETRIED:
                raise JudgeFailure("raised", message) from error
            after = error.headers.get("Retry-After", "")
            raise _Again("raised", message, float(after) if after.isdigit() else 0.0) from error
        except TimeoutError as error:
            raise _Again("timeout", f"{self.url} took longer than {self.timeout:g} s") from error
        except (OSError, http.client.HTTPException) as error:
            slow = isinstance(getattr(error, "reason", None), TimeoutError)
            message = f"took longer than {self.timeout:g} s" if slow else f"can't be reached: {error}"
            raise _Again("timeout" if slow else "raised", one_line(f"{self.url} {message}")) from error
        try:
            content = json.loads(said)["choices"][0]["message"]["content"]
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise JudgeFailure("raised", one_line(f"{self.url} answers no chat completion: {said[:200]!r}")) from error
        return content if isinstance(content, str) else ""


class _Again(Exception):
    """Worth another attempt, after that many seconds."""

    def __init__(self, kind: str, message: str, after: float = 0.0) -> None:
        super().__init__(message)
        self.kind, self.after = kind, after


@dataclass(frozen=True)
class LocalJudge:
    """A causal language model in this process; greedy, one question at a time.

    model, tokenizer  of transformers; a chat template is used where the tokenizer has one, else what the messages say
    max_new_tokens    of an answer
    """

    model: Any
    tokenizer: Any
    max_new_tokens: int = 64
    _turn: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def ask(self, messages: Messages) -> str:
        import torch

        tokens = Tokens(self.tokenizer)  # what is judged must not write the judge's control tokens
        said = tokens.typed([dict(m) for m in messages])
        if getattr(self.tokenizer, "chat_template", None):
            text = self.tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=True)
            row = tokens.encode(text)
        else:
            row = tokens.bos + tokens.encode("\n\n".join(m["content"] for m in said) + "\n")
        ids = torch.tensor([row])
        room = getattr(self.model.config, "max_position_embeddings", None)
        if room is not None and ids.shape[1] + self.max_new_tokens > room:
            raise JudgeFailure(
                "raised", f"a question of {ids.shape[1]} tokens leaves no room for an answer in {room} positions"
            )
        try:
            with self._turn, torch.no_grad():
                out = self.model.generate(
                    ids.to(self.model.device),
                    attention_mask=torch.ones_like(ids).to(self.model.device),
                    max_new_tokens=self.max_new_tokens,
                    do_sample=False,
                    temperature=None,
                    top_p=None,
                    top_k=None,
                    pad_token_id=self.tokenizer.pad_token_id,
                )
        except Exception as error:
            raise JudgeFailure("raised", described(error)) from error
        return self.tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)
