"""Completions of prefixes from a search tree (Tree-OPO): a teacher's, or one of the policy's own."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import Any, NamedTuple

from gxpo.base.errors import ConfigError
from gxpo.forest.forest import Forest
from gxpo.forest.records import load
from gxpo.parts.protocols import Completion, Request, Session, Task
from gxpo.parts.registry import part
from gxpo.sampling.rollouts.build import (
    Count,
    RolloutPart,
    action,
    group_of,
    keyed,
    name_draws,
    record,
    sample_within,
    stream,
)
from gxpo.sampling.rollouts.search import Search


class Prefix(NamedTuple):
    """The first tokens of an answer, and where each of its pieces begins."""

    tokens: tuple[int, ...] = ()
    begins: tuple[int, ...] = ()


def beginnings(forest: Forest) -> dict[str, list[Prefix]]:
    """By task: the empty prefix, and what each attempt had written when each of its pieces ended, but for the last;
    each once, in the order in which they come. A piece is a segment of the first turn."""
    found: dict[str, dict[Prefix, None]] = {}
    token, segment = forest.token[forest.path_token].tolist(), forest.segment[forest.path_token].tolist()
    turn = forest.step_turn[forest.path_step].tolist()
    for r in range(forest.n_trajectories):
        own = [p for p in forest.path_of(r).tolist() if turn[p] == 0]
        ends = [i for i in range(1, len(own)) if segment[own[i]] != segment[own[i - 1]]]
        known = found.setdefault(forest.task[r], {Prefix(): None})
        begins = [0, *ends]
        for i, end in enumerate(ends):
            known.setdefault(Prefix(tuple(token[p] for p in own[:end]), tuple(begins[: i + 1])))
    return {task: list(prefixes) for task, prefixes in found.items()}


@part("prefixes", stage="rollout")
@dataclass(frozen=True)
class Prefixes(RolloutPart):
    """`group_size` completions of each task, each of a prefix that is drawn uniformly from a tree of the task's.

    group_size  completions a task, which are one group "s{step}/{task}"
    tree        file of rollouts (`gxpo.rollouts/1`, in the policy's tokens, with segments) of whoever made the
                prefixes, such as a teacher's search, written by a run of rollout `search`; "": the policy searches by
                itself in every step, and what that generates is charged
    terminals, width, chunks   of that search, see `Search`

    Prefixes end where a piece of an attempt does; the empty one, which is the task itself, is always among them, and
    the only one of a task that the file does not have. They are drawn with replacement from the stream (seed, step,
    task); completion i is sampled under (seed, step, task, i). A prefix is untrained, completions are declared forks
    where they share one. The whole of prefix and completion is judged; attempts are as long as
    `sampling.max_new_tokens` at most, prefix included.

    Source: Tree-OPO, arXiv 2509.09284: an offline tree of a stronger model's search; `tree` "" is ours.
    """

    group_size: Count = 8
    tree: str = ""
    terminals: int = 4
    width: int = 4
    chunks: int = 8

    provides = ("states", "forks", "segments")
    single_turn = True

    def __post_init__(self) -> None:
        _ = self._search  # its settings are refused where these are

    @property
    def _search(self) -> Search:
        return Search(self.terminals, self.width, chunks=self.chunks)

    @cached_property
    def _given(self) -> Mapping[str, list[Prefix]]:
        """The file's, read once."""
        forest = load(self.tree)
        if not bool((forest.segment >= 0).any()):
            raise ConfigError(f"rollout.tree: {self.tree} has no segments, so there is nowhere that a prefix could end")
        return beginnings(forest)

    def grow(self, tasks: Sequence[Task], session: Session) -> Forest:
        known = self._given if self.tree else self._searched(tasks, session)
        limit, groups = session.sampling.max_new_tokens, []
        for task, draw in zip(tasks, name_draws(tasks), strict=True):
            usable = [p for p in known.get(task.id, [Prefix()]) if len(p.tokens) < limit]
            draws = keyed(session, draw, "prefix")
            prompt = session.encode(task)
            groups.append([_Attempt(task, draw, i, prompt, draws.choice(usable)) for i in range(self.group_size)])
        self._completed([attempt for group in groups for attempt in group], session)
        forest = Forest.from_records([line for group in groups for line in _records(group, session)])
        return session.score(forest)

    def _searched(self, tasks: Sequence[Task], session: Session) -> dict[str, list[Prefix]]:
        distinct = list({task.id: task for task in tasks}.values())
        found = self._search.grow(distinct, session)
        session.budget.discarded += found.n_trajectories
        return beginnings(found)

    @staticmethod
    def _completed(attempts: Sequence[_Attempt], session: Session) -> None:
        """A completion for every attempt."""
        requests = [Request((*a.prompt, *a.prefix.tokens), (stream(session, a.draw, a.number),)) for a in attempts]
        rooms = [session.sampling.max_new_tokens - len(a.prefix.tokens) for a in attempts]
        for attempt, (done,) in zip(attempts, sample_within(session, requests, rooms), strict=True):
            attempt.done = done


@dataclass(eq=False)
class _Attempt:
    task: Task
    draw: str
    number: int
    prompt: tuple[int, ...]
    prefix: Prefix
    done: Completion | None = None


def _records(group: Sequence[_Attempt], session: Session) -> Iterator[dict[str, Any]]:
    """Each attempt leaves the earlier one whose prefix it shares most with."""
    for i, attempt in enumerate(group):
        done, tokens, begins = attempt.done, attempt.prefix.tokens, [*attempt.prefix.begins, len(attempt.prefix.tokens)]
        assert done is not None
        shared, base = max(
            ((_common(tokens, other.prefix.tokens), -j) for j, other in enumerate(group[:i])), default=(0, 0)
        )
        name = group_of(session, attempt.draw)
        given = Completion([*tokens[shared:]], [math.nan] * (len(tokens) - shared), "stop")
        where: dict[str, Any] = {"prompt": list(attempt.prompt)}
        if shared:
            where = {"fork": {"of": f"{name}/{-base}", "turn": 0, "token": shared}}
        turn = action(given, done) | {
            "trainable": [False] * len(given.tokens) + [True] * len(done.tokens),
            "segments": [b - shared for b in begins if b >= shared],
            "state": attempt.task.id,
        }
        yield record(
            attempt.task,
            name,
            f"{name}/{attempt.number}",
            session.sampling,
            **where,
            turns=[turn],
            truncated=done.finish == "length",
            info={"prefix": len(tokens)},
        )


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many first tokens are the same."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
