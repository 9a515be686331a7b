"""Cut and regenerate (Search-R2): an attempt keeps its steps before the flawed one and goes on from there."""

from __future__ import annotations

import dataclasses
import random
import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Literal

from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Request, Session, StreamKey, Task
from gxpo.parts.registry import part
from gxpo.sampling.rollouts.build import Count, Episode, Limit, RolloutPart, Text, action
from gxpo.sampling.rollouts.context import messages_of, opened, with_system
from gxpo.sampling.rollouts.episodes import Play
from gxpo.sampling.rollouts.fork import Fork
from gxpo.sampling.rollouts.wording import Wording, check_template

REFINER = "refiner"
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
    """An attempt as it stands now, and what the refiner was asked and said about it."""

    name: str
    newest: Episode
    steps: list[tuple[int, int]] = field(default_factory=list)  # where each begins: the turn, and the token in it
    logprobs: list[list[float]] = field(default_factory=list)  # of each turn's whole action
    judged: list[dict[str, Any]] = field(default_factory=list)
    cuts: list[int] = field(default_factory=list)
    flawed: int | None = None  # the step to cut at; None: accepted

    def stream(self, turn: int = 0) -> StreamKey:
        return dataclasses.replace(self.newest.key, path=(len(self.cuts) + 1,), turn=turn)

    def pieces(self, values: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
        """Of each turn's values those of each step."""
        both = zip(self.steps, [*self.steps[1:], (len(values), 0)], strict=True)
        return [values[turn][token : end if at == turn else None] for (turn, token), (at, end) in both]


@part("cut_and_regenerate", stage="rollout")
@dataclass(frozen=True)
class CutAndRegenerate(RolloutPart):
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
    refiner. In an environment the steps are turns: it is taken back to where it stood before the flawed one, and
    info["cuts"] says after how many turns.

    group_size      attempts a task
    revisions       at most so many cuts of an attempt
    delimiter       ends a step
    template        the refiner's prompt: {prompt}, and {attempt} or {steps}, which are numbered from 1, a line each
    refiner_tokens  tokens of a refiner's answer
    """

    group_size: Count = 8
    revisions: Limit = 1
    where: Literal["refiner", "uniform", "low_probability"] = "refiner"
    delimiter: Text = "\n"
    template: str = QUESTION
    refiner_tokens: Count = 8

    provides = ("states",)

    def __post_init__(self) -> None:
        check_template("rollout.template", self.template, ("prompt",), ("attempt", "steps"))

    def grow(self, tasks: Sequence[Task], session: Session) -> Forest:
        with Play(session, restorable=True, at_once=True) as play:
            first = play.begin([draw.attempts(self.group_size) for draw in play.draws(tasks)])
            play.finish(first)
            attempts = [_Attempt(e.id, e) for e in first]
            for attempt in attempts:
                attempt.newest.label = f"{attempt.name}/cut0"
                attempt.logprobs = [turn["logprob"] for turn in attempt.newest.turns]
            running = [a for a in attempts if a.newest.failure is None]
            for _ in range(self.revisions):
                for attempt in running:
                    attempt.steps = self._steps(attempt.newest, play)
                self._find(running, play)
                running = [attempt for attempt in running if attempt.flawed is not None]
                if not running:
                    break
                self._go_on(running, play)
            session.budget.discarded += sum(len(attempt.cuts) for attempt in attempts)
            sampling = dataclasses.asdict(session.sampling)
            records = [e.record(sampling) for e in play.episodes]
            forest = Forest.from_records(records + [self._final(a, sampling) for a in attempts])
            forest = forest.select(range(len(records), len(records) + len(attempts)))
            return session.score(forest, [self._said(a.newest, session) for a in attempts])

    def _steps(self, episode: Episode, play: Play) -> list[tuple[int, int]]:
        """Where the steps of an attempt begin: its turns, or of an answer the pieces that the delimiter ends."""
        if play.world:
            return [(turn, 0) for turn in range(len(episode.turns))]
        return [(0, token) for token in step_begins(episode.whole(0), self.delimiter, play.session.decode)]

    def _find(self, running: Sequence[_Attempt], play: Play) -> None:
        """Sets the flawed step of each."""
        if self.where == "refiner":
            self._ask(running, play)
            return
        for attempt in running:
            if self.where == "uniform":
                attempt.flawed = random.Random(repr(attempt.stream())).randrange(len(attempt.steps))
            else:
                pieces = attempt.pieces(attempt.logprobs)
                flat = [x for piece in pieces for x in piece]
                attempt.flawed = least_probable(flat, [0, *accumulate(map(len, pieces))][:-1])

    def _ask(self, running: Sequence[_Attempt], play: Play) -> None:
        """A turn of the refiner about each, where its context has room for one."""
        session = play.session
        asked = [(attempt, self._question(attempt, play)) for attempt in running]
        for attempt in running:
            attempt.flawed = None
        asked = [(a, context) for a, context in asked if len(context) + self.refiner_tokens <= play.rules.max_context]
        requests = [Request(context, (a.stream(turn=-1 if play.world else 1),)) for a, context in asked]
        short = dataclasses.replace(session.sampling, max_new_tokens=self.refiner_tokens)
        replies = session.sample(requests, short) if requests else []
        for (attempt, context), (reply,) in zip(asked, replies, strict=True):
            attempt.flawed = flawed_step(session.decode(reply.tokens), len(attempt.steps))
            info = {"flawed": None if attempt.flawed is None else attempt.flawed + 1}
            attempt.judged.append({**action(reply), "agent": REFINER, "context": list(context), "info": info})

    def _question(self, attempt: _Attempt, play: Play) -> tuple[int, ...]:
        """What the refiner reads."""
        session, episode = play.session, attempt.newest
        said = attempt.pieces([episode.whole(turn) for turn in range(len(episode.turns))])
        steps = [session.decode(piece) for piece in said]
        if play.world:
            came = play.came(episode)
            steps = ["\n".join(filter(None, pair)) for pair in zip(steps, came, strict=True)]
        numbered = "\n".join(f"{i}. {step}" for i, step in enumerate(steps, 1))
        wording = Wording(self.template, {"attempt": play.transcript(episode), "steps": numbered})
        if not play.world:
            return session.encode(wording.of_task(episode.task))
        shown = opened(play.envs.instructions, messages_of(episode.turns[0]["observation_text"]))
        return session.chat.start(with_system(session.chat, session.system, wording.of_messages(shown))).context

    @staticmethod
    def _go_on(running: Sequence[_Attempt], play: Play) -> None:
        """Each is cut at its flawed step and goes on."""
        forks = []
        for a in running:
            assert a.flawed is not None
            turn, token = a.steps[a.flawed]
            forks.append(Fork(a.newest, turn, a.stream(), f"{a.newest.key.task}/{a.name}/cut{len(a.cuts) + 1}", token))
        begun = play.fork(forks)
        for a, fork, episode in zip(running, forks, begun, strict=True):
            a.cuts.append(fork.turn if play.world else fork.token)
            episode.label = f"{a.name}/cut{len(a.cuts)}"
        play.finish(begun)
        for a, fork, episode in zip(running, forks, begun, strict=True):
            own = [turn["logprob"] for turn in episode.turns[fork.turn :]]
            own[0] = [*a.logprobs[fork.turn][: fork.token], *own[0]]
            a.newest, a.logprobs = episode, [*a.logprobs[: fork.turn], *own]

    @staticmethod
    def _final(a: _Attempt, sampling: dict[str, Any]) -> dict[str, Any]:
        """The record of an attempt as it ended: all of its newest version, and the refiner's turns."""
        line = a.newest.record(sampling)
        line.pop("prompt", None)
        return {
            **line,
            "id": a.name,
            "fork": {"of": a.newest.id, "turn": len(a.newest.turns) - 1, "token": None},
            "turns": a.judged,
            "origin": "correction" if a.cuts else "policy",
            "info": {**line["info"], **({"cuts": a.cuts} if a.cuts else {})},
        }

    @staticmethod
    def _said(episode: Episode, session: Session) -> str:
        """What is judged: the attempt's own words, without the refiner's."""
        return session.decode([token for turn in range(len(episode.turns)) for token in episode.whole(turn)])
