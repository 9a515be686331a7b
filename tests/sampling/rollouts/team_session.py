"""A session whose team follows a script: every agent says what the script gives it for what it has read."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from gxpo.forest.forest import Forest
from gxpo.parts.protocols import (
    Budget,
    Chat,
    Completion,
    ContextUpdate,
    Conversation,
    Envs,
    EpisodeRules,
    Message,
    Reply,
    Request,
    Sampling,
    Task,
)

END = 0  # token that ends an action


class Letters:
    """Texts as the code points of their letters, without a template; an action ends with END."""

    stop_ids: tuple[int, ...] = (END,)

    def start(self, messages: Sequence[Message], tools: object = ()) -> Conversation:
        return _Open(encoded("".join(str(m["content"]) for m in messages)))


class _Open:
    def __init__(self, context: tuple[int, ...]) -> None:
        self.context = context
        self.messages: list[Message] = []

    def act(self, tokens: Sequence[int]) -> Reply:
        self.context += tuple(tokens)
        return Reply(decoded(tokens))

    def observe(self, messages: Sequence[Message]) -> ContextUpdate:
        ids = encoded("".join(str(m["content"]) for m in messages))
        self.context += ids
        return ContextUpdate(ids)

    def copy(self) -> Conversation:
        return _Open(self.context)


def encoded(text: str) -> tuple[int, ...]:
    return tuple(map(ord, text))


def decoded(tokens: Sequence[int]) -> str:
    return "".join(chr(t) for t in tokens if t != END)


class TeamSession:
    """`script(policy, context, attempt)` is what is said; `judge(task, text)` is the outcome of a team's answer."""

    def __init__(
        self,
        script: Callable[[str, str, int], str],
        judge: Callable[[Task, str], float] = lambda task, text: float(text == task.answer),
        *,
        max_context: int = 1 << 30,
    ) -> None:
        self.script, self.judge = script, judge
        self.step, self.seed, self.sampling, self.budget = 3, 5, Sampling(max_new_tokens=32), Budget()
        self.chat: Chat = Letters()
        self.system: str | None = None
        self.envs: Envs | None = None
        self.episode = EpisodeRules(max_context=max_context)
        self.requests: list[list[Request]] = []
        self.judged: list[list[str]] = []
        self.released: list[str] = []
        self.tasks: dict[str, Task] = {}

    def draw(self, n: int) -> list[Task]:
        raise AssertionError("a team draws no tasks of its own")

    def encode(self, task: Task) -> tuple[int, ...]:
        assert isinstance(task.prompt, str)
        return encoded(task.prompt)

    def tokenize(self, text: str, *, markup: bool = False) -> tuple[int, ...]:
        return encoded(text)

    def decode(self, tokens: Sequence[int]) -> str:
        return decoded(tokens)

    def solution(self, task: Task) -> str | None:
        return None

    def sample(self, requests: Sequence[Request], sampling: Sampling | None = None) -> list[list[Completion]]:
        self.requests.append(list(requests))
        out = []
        for r in requests:
            message = [(*encoded(self.script(r.policy, decoded(r.prompt), s.attempt)), END) for s in r.streams]
            out.append([Completion(list(t), [-0.5] * len(t), "stop", policy_version=2) for t in message])
            self.budget.generated_tokens += sum(map(len, message))
            self.budget.rollouts += sum(s.turn == 0 for s in r.streams)
        return out

    def release(self, names: Sequence[str]) -> None:
        self.released += names

    def score(self, forest: Forest, texts: Sequence[str] | None = None) -> Forest:
        assert texts is not None and not bool(forest.scored.any())
        self.judged.append(list(texts))
        outcome = torch.tensor(
            [self.judge(self.tasks[t], x) for t, x in zip(forest.task, texts, strict=True)], dtype=torch.float64
        )
        return forest.with_rewards(outcome, components={"correct": outcome}, success=(outcome >= 1).double())

    def know(self, tasks: Sequence[Task]) -> None:
        self.tasks |= {t.id: t for t in tasks}

    def asked(self, *tasks: Task) -> list[Task]:
        """These tasks, which can then be judged."""
        self.know(tasks)
        return list(tasks)


class AnswerSession(TeamSession):
    """A session whose rollouts leave the text that is judged to it: all that an attempt says."""

    def score(self, forest: Forest, texts: Sequence[str] | None = None) -> Forest:
        return super().score(forest, texts or [decoded(forest.action(r)) for r in range(forest.n_trajectories)])
