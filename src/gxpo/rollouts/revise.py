"""Attempts are cut where they went wrong, and what followed is written anew."""

from __future__ import annotations

import dataclasses
import random
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from gxpo.errors import ConfigError
from gxpo.forest import Forest
from gxpo.protocols import Completion, Request, Session, StreamKey, Task
from gxpo.rollouts.again import action, check_template, need_single_turn, record, reworded
from gxpo.rollouts.build import name_draws

REFINER = "refiner"
WHERE = ("refiner", "uniform", "low_probability")
QUESTION = """{prompt}

An attempt at this, step by step:
{steps}

Which is the first wrong step? Answer with its number, or with 0 if no step is wrong.
"""


def step_begins(tokens: Sequence[int], delimiter: str, decode: Callable[[Sequence[int]], str]) -> list[int]:
    """Index of the token at which each step of an action begins; a step ends with the delimiter.

    A token that reaches beyond a delimiter belongs to the step that it begins. Found by bisection in the lengths of
    decoded prefixes. An action without tokens has one step, which begins at 0.

    >>> words = {1: "a", 2: ",", 3: "bc", 4: ",d"}
    >>> step_begins([1, 3, 2, 1, 4, 3], ",", lambda ids: "".join(words[i] for i in ids))
    [0, 3, 4]
    """
    text, begins, at = decode(tokens), [0], 0
    while (found := text.find(delimiter, at)) >= 0 and (at := found + len(delimiter)) < len(text):
        begin = bisect_right(range(len(tokens) + 1), at, key=lambda i: len(decode(tokens[:i]))) - 1
        if begins[-1] < begin < len(tokens):
            begins.append(begin)
    return begins


def least_probable(logprobs: Sequence[float], begins: Sequence[int]) -> int:
    """Which step (from 0) has the lowest mean log-prob of its tokens, the first on ties.

    >>> least_probable([-0.1, -0.3, -2.0, -0.1, -0.9], [0, 2, 4])
    1
    """
    ends = [*begins[1:], len(logprobs)]
    means = [sum(logprobs[b:e]) / max(e - b, 1) for b, e in zip(begins, ends, strict=True)]
    return means.index(min(means))


def flawed_step(reply: str, n_steps: int) -> int | None:
    """The step (from 0) that a reply names: the first number in it, counted from 1. None: no such step.

    >>> flawed_step("step 2.", 3), flawed_step("0", 3), flawed_step("7", 3), flawed_step("all good", 3)
    (1, None, None, None)
    """
    found = re.search(r"-?\d+", reply)
    number = int(found[0]) if found else 0
    return number - 1 if 1 <= number <= n_steps else None


@dataclass
class _Attempt:
    """An attempt as it stands now, the records that led to it and the refiner's turns about it."""

    task: Task
    draw: str
    number: int
    name: str
    prompt: tuple[int, ...]
    sampled: Completion  # the whole action
    records: list[dict[str, Any]]
    judged: list[dict[str, Any]] = field(default_factory=list)
    cuts: list[int] = field(default_factory=list)
    begins: list[int] = field(default_factory=list)
    flawed: int | None = None  # the step to cut at; None: accepted

    def stream(self, session: Session, turn: int = 0) -> StreamKey:
        return StreamKey(session.seed, session.step, self.draw, self.number, path=(len(self.cuts) + 1,), turn=turn)


@dataclass(frozen=True)
class Revise:
    """Cut and regenerate: an attempt keeps its steps before the flawed one, and goes on from there; `revisions` times.

    Where the flaw is, `where` says:
      "refiner"          the policy, asked under a prompt of its own, answers with the step's number. What it was asked
                         and what it wrote are a turn of agent "refiner" with its own context in the same trajectory, so
                         that it shares the trajectory's credit. 0 or no number of a step accepts the attempt as it is.
      "uniform"          any step, with equal probability, in every revision
      "low_probability"  the step with the lowest mean log-prob of its tokens, in every revision

    A revised attempt is a declared fork inside the action of the one before it: the tokens kept have the log-probs
    under which they were sampled, and so have the new ones. Attempts that were cut are not in the forest and are
    charged to `session.budget.discarded`. A revised one has origin "correction"; info["cuts"] says after how many
    tokens. It is scored on its own answer, without the refiner's words. Held-out tasks are attempted once, without a
    refiner.

    group_size      attempts a task
    revisions       at most so many cuts of an attempt
    delimiter       ends a step
    template        the refiner's prompt: {prompt}, and {attempt} or {steps}, which are numbered from 1, a line each
    refiner_tokens  tokens of a refiner's answer
    """

    group_size: int = 8
    revisions: int = 1
    where: Literal["refiner", "uniform", "low_probability"] = "refiner"
    delimiter: str = ","
    template: str = QUESTION
    refiner_tokens: int = 8

    provides = ("states",)
    single_turn = True

    def __post_init__(self) -> None:
        for name, least in (("group_size", 1), ("revisions", 0), ("refiner_tokens", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"rollout.{name} must be at least {least}, not {getattr(self, name)!r}")
        if self.where not in WHERE:
            raise ConfigError(f"rollout.where is {self.where!r}; it is one of {', '.join(WHERE)}")
        if not self.delimiter:
            raise ConfigError("rollout.delimiter is empty; give the text that ends a step")
        check_template("rollout.template", self.template, ("prompt",), ("attempt", "steps"))

    def grow(self, tasks: Sequence[Task], session: Session) -> Forest:
        need_single_turn(session, "revise", "cuts answers")
        attempts = self._first(tasks, session)
        running = attempts
        for _ in range(self.revisions if attempts else 0):
            for attempt in running:
                attempt.begins = step_begins(attempt.sampled.tokens, self.delimiter, session.decode)
            self._find(running, session)
            running = [attempt for attempt in running if attempt.flawed is not None]
            if not running:
                break
            self._go_on(running, session)
        session.budget.discarded += sum(len(attempt.cuts) for attempt in attempts)
        records = [r for attempt in attempts for r in attempt.records]
        forest = Forest.from_records(records + [self._final(attempt, session) for attempt in attempts])
        forest = forest.select(range(len(records), len(records) + len(attempts)))
        return session.score(forest, [session.decode(attempt.sampled.tokens) for attempt in attempts])

    def _first(self, tasks: Sequence[Task], session: Session) -> list[_Attempt]:
        """Attempts that nobody has looked at."""
        draws = name_draws(tasks, Counter())
        prompts = [session.encode(task) for task in tasks]
        streams = [tuple(StreamKey(session.seed, session.step, d, i) for i in range(self.group_size)) for d in draws]
        sampled = session.sample([Request(p, s) for p, s in zip(prompts, streams, strict=True)])
        attempts = []
        for task, draw, prompt, group in zip(tasks, draws, prompts, sampled, strict=True):
            for i, completion in enumerate(group):
                name = f"s{session.step}/{draw}/{i}"
                turn = {**action(completion), "state": task.id}
                columns = {"prompt": list(prompt), "turns": [turn]}
                written = record(task, f"s{session.step}/{draw}", f"{name}/cut0", session.sampling, **columns)
                attempts.append(_Attempt(task, draw, i, name, prompt, completion, [written]))
        return attempts

    def _find(self, running: Sequence[_Attempt], session: Session) -> None:
        """Sets the flawed step of each."""
        if self.where == "refiner":
            self._ask(running, session)
            return
        for attempt in running:
            if self.where == "uniform":
                attempt.flawed = random.Random(repr(attempt.stream(session))).randrange(len(attempt.begins))
            else:
                attempt.flawed = least_probable(attempt.sampled.logprobs, attempt.begins)

    def _ask(self, running: Sequence[_Attempt], session: Session) -> None:
        """A turn of the refiner about each."""
        contexts = [session.encode(self._question(attempt, session)) for attempt in running]
        asked = [Request(c, (a.stream(session, turn=1),)) for c, a in zip(contexts, running, strict=True)]
        short = dataclasses.replace(session.sampling, max_new_tokens=self.refiner_tokens)
        for attempt, context, (reply,) in zip(running, contexts, session.sample(asked, short), strict=True):
            attempt.flawed = flawed_step(session.decode(reply.tokens), len(attempt.begins))
            info = {"flawed": None if attempt.flawed is None else attempt.flawed + 1}
            attempt.judged.append({**action(reply), "agent": REFINER, "context": list(context), "info": info})

    def _question(self, attempt: _Attempt, session: Session) -> Task:
        tokens, begins = attempt.sampled.tokens, attempt.begins
        steps = [session.decode(tokens[b:e]) for b, e in zip(begins, [*begins[1:], len(tokens)], strict=True)]
        numbered = "\n".join(f"{i}. {step}" for i, step in enumerate(steps, 1))
        return reworded(attempt.task, self.template, attempt=session.decode(tokens), steps=numbered)

    def _go_on(self, running: Sequence[_Attempt], session: Session) -> None:
        """Each is cut at its flawed step and goes on."""
        kept = [a.begins[a.flawed] for a in running if a.flawed is not None]
        asked = [
            Request((*a.prompt, *a.sampled.tokens[:cut]), (a.stream(session),))
            for a, cut in zip(running, kept, strict=True)
        ]
        room = session.sampling.max_new_tokens
        widest = dataclasses.replace(session.sampling, max_new_tokens=room - min(kept))
        for a, cut, (new,) in zip(running, kept, session.sample(asked, widest), strict=True):
            new = _within(new, room - cut)
            base = a.records[-1]["id"]
            a.cuts.append(cut)
            a.records.append(
                record(
                    a.task,
                    f"s{session.step}/{a.draw}",
                    f"{a.name}/cut{len(a.cuts)}",
                    session.sampling,
                    fork={"of": base, "turn": 0, "token": cut},
                    turns=[action(new)],
                )
            )
            a.sampled = dataclasses.replace(
                new,
                tokens=[*a.sampled.tokens[:cut], *new.tokens],
                logprobs=[*a.sampled.logprobs[:cut], *new.logprobs],
                support=None,
            )

    @staticmethod
    def _final(a: _Attempt, session: Session) -> dict[str, Any]:
        """The record of an attempt as it ended: all of its newest version, and the refiner's turns."""
        return record(
            a.task,
            f"s{session.step}/{a.draw}",
            a.name,
            session.sampling,
            fork={"of": a.records[-1]["id"], "turn": 0, "token": None},
            turns=a.judged,
            truncated=a.sampled.finish == "length",
            origin="correction" if a.cuts else "policy",
            info={"cuts": a.cuts} if a.cuts else {},
        )


def _within(completion: Completion, room: int) -> Completion:
    """The first `room` tokens of a completion that had more room."""
    if len(completion.tokens) <= room:
        return completion
    return dataclasses.replace(
        completion,
        tokens=completion.tokens[:room],
        logprobs=completion.logprobs[:room],
        support=None if completion.support is None else completion.support[:room],
        finish="length",
    )
