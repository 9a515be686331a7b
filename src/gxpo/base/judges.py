"""LLM judges that hold no model: any callable, and an OpenAI-compatible server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from gxpo.base import media
from gxpo.base.errors import ConfigError, GxpoError
from gxpo.base.usercode import described, one_line

if TYPE_CHECKING:
    from gxpo.base.remote import Line

Messages = Sequence[Mapping[str, str]]  # {"role": "system" | "user" | "assistant", "content": ...}
Failure = tuple[str, str]  # ("raised" | "timeout" | "died" | "nonsense", message)
LONGEST_REPLY = 1 << 22  # bytes
VISION_HINT = (
    "is for a server: a checkpoint is shown pictures if it reads them, a function is told their names; leave it out"
)


class JudgeFailure(Exception):
    """A judge gave no answer. `kind`: "raised", "timeout" or "nonsense". The rollout in question is unscored."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Judge(Protocol):
    """A judge: messages in, text out. Called from several threads at once; raises `JudgeFailure` if it can't answer.

    Any other exception costs the one question too, but for a `GxpoError`, which is about the set-up and ends the run.
    """

    def ask(self, messages: Messages) -> str: ...


@runtime_checkable
class Believer(Protocol):
    """A judge that gives log-probs of a given text; raises `JudgeFailure` like `ask`."""

    def logprob(self, prompt: str, reply_start: str, answer: str) -> float:
        """Sum of the log-probs (nats) of an answer's tokens, where a reply to `prompt` begins with `said`."""
        ...


class Meter:
    """Tokens that the judges of this process have generated; of a server that does not say how many, none."""

    def __init__(self) -> None:
        self.tokens = 0
        self._turn = threading.Lock()

    def add(self, tokens: int) -> None:
        with self._turn:
            self.tokens += tokens


meter = Meter()


def ask_all(judge: Judge, questions: Sequence[Messages], workers: int) -> list[str | Failure]:
    """Ask all questions, `workers` at a time; the answer to each, or its JudgeFailure. Equal questions are asked
    separately."""

    def ask(question: Messages) -> str | Failure:
        try:
            return judge.ask(question)
        except JudgeFailure as error:
            return (error.kind, str(error))
        # an error of the configuration is the same for every question: it ends the run with its remedy
        except GxpoError:
            raise
        # any callable may be a judge: what it raises is the answer to this question alone
        except Exception as error:
            return ("raised", described(error))

    with ThreadPoolExecutor(max(1, workers)) as threads:
        return list(threads.map(ask, questions))


@dataclass(frozen=True)
class FunctionJudge:
    """Judge by a Python function of messages. It runs in this process, without a time limit."""

    function: Callable[[Messages], str]

    def ask(self, messages: Messages) -> str:
        try:
            answer = self.function(messages)
        except (Exception, SystemExit) as error:
            raise JudgeFailure("raised", described(error)) from error
        if not isinstance(answer, str):
            raise JudgeFailure("raised", one_line(f"returned {answer!r}, not a text"))
        return answer


@dataclass(frozen=True)
class Server:
    """Judge by chat completions of an OpenAI-compatible server (vLLM, llama.cpp, Ollama, hosted ones).

    url         base URL, before /chat/completions, as http://localhost:8000/v1
    model       as the server calls it
    key_from    environment variable that holds the key; None: the service's own, where it is one that `server_keys`
                knows. Any other has to be allowed (`gxpo train --allow-key NAME`, GXPO_ALLOW_KEY)
    timeout     seconds for one attempt;   retries  further attempts where the server is busy, broken, slow or gone
    backoff     seconds before the first of them, doubled for each, at most 30 (a Retry-After is followed up to that)
    vision      its model reads pictures: those of a task are sent within the question, as PNG files in data URLs (parts
                `image_url`); otherwise it is told their names
    """

    url: str
    model: str
    key_from: str | None = None
    temperature: float = 0.0
    max_tokens: int = 256
    timeout: float = 60.0
    retries: int = 3
    backoff: float = 1.0
    vision: bool = False
    _line: Line = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        from gxpo.base.remote import Line  # which needs an extra

        if not self.model:
            raise ConfigError("judge: say which model of the server answers (model=...)")
        limits: dict[str, Any] = {"timeout": self.timeout, "retries": self.retries, "backoff": self.backoff}
        line = Line(self.url, setting="judge: server", asker="judge", key_from=self.key_from, **limits)
        object.__setattr__(self, "_line", line)

    def ask(self, messages: Messages) -> str:
        from gxpo.base.remote import ChatCompletion, Unanswered

        body = {"model": self.model, "messages": [_wire_message(m, self.vision) for m in messages],
                "temperature": self.temperature, "max_tokens": self.max_tokens}  # fmt: skip
        try:
            reply = self._line.post("/chat/completions", body, ChatCompletion, LONGEST_REPLY)
        except Unanswered as error:
            raise JudgeFailure(error.kind, str(error)) from error
        choice = reply.choices[0]
        meter.add(reply.usage.completion_tokens if reply.usage is not None else 0)
        # a verdict stands at the end of an answer: cut off it is missing, and the remedy is more tokens
        if choice.finish_reason == "length":
            raise JudgeFailure("nonsense", reply_cut_off(self.url, self.max_tokens, "max_tokens"))
        return choice.message.content or ""


def _wire_message(message: Mapping[str, str], vision: bool) -> dict[str, Any]:
    """A message as chat completions take it: in parts where it shows pictures (`gxpo.base.media.mark`)."""
    content = message["content"]
    if not isinstance(content, str):
        return dict(message)
    first_text, *pieces = media.split(content)
    # a judge that can't see is told of pictures in words
    if not pieces or not vision:
        return {**message, "content": media.text_of(content)}
    parts: list[dict[str, Any]] = [{"type": "text", "text": first_text}]
    for ref, text in zip(pieces[::2], pieces[1::2], strict=True):
        parts.append({"type": "image_url", "image_url": {"url": media.data_url(ref)}})
        parts.append({"type": "text", "text": text})
    # some servers refuse empty texts, which lie between two pictures in a row
    return {**message, "content": [part for part in parts if part.get("text") != ""]}


def reply_cut_off(who: str, tokens: int, setting: str) -> str:
    """Error for an answer that was cut off: its last number may lack a digit."""
    return f"{who} was cut off after {tokens} tokens: raise {setting}"
