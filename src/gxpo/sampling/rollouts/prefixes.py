"""Completions of prefixes (Tree-OPO) that are drawn from a teacher's search tree, or from the policy's own."""

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
    name_draws,
    random_for,
    record,
    sample_within,
    stream,
)
from gxpo.sampling.rollouts.search import Search


class Prefix(NamedTuple):
    """The first tokens of an answer, and the positions at which its pieces begin."""

    tokens: tuple[int, ...] = ()
    begins: tuple[int, ...] = ()


def beginnings(forest: Forest) -> dict[str, list[Prefix]]:
    """Return the prefixes by task: the empty one, and each attempt's tokens up to the end of each piece but its last.

    A piece is a segment of the first turn. Each prefix is there once, in order of first appearance.
    """
    prefixes_by_task: dict[str, dict[Prefix, None]] = {}
    token, segment = forest.token[forest.path_token].tolist(), forest.segment[forest.path_token].tolist()
    turn = forest.step_turn[forest.path_step].tolist()
    for r in range(forest.n_trajectories):
        places = [p for p in forest.path_of(r).tolist() if turn[p] == 0]
        ends = [i for i in range(1, len(places)) if segment[places[i]] != segment[places[i - 1]]]
        task_prefixes = prefixes_by_task.setdefault(forest.task[r], {Prefix(): None})
        begins = [0, *ends]
        for i, end in enumerate(ends):
            task_prefixes.setdefault(Prefix(tuple(token[p] for p in places[:end]), tuple(begins[: i + 1])))
    return {task: list(prefixes) for task, prefixes in prefixes_by_task.items()}


@part("prefixes", stage="rollout")
@dataclass(frozen=True)
class Prefixes(RolloutPart):
    """`group_size` completions of each task, each of a prefix that is drawn uniformly from a search tree of the task.

    group_size  completions a task, which are one group "s{step}/{task}"
    tree        file of rollouts (`gxpo.rollouts/1`, in the policy's tokens, with segments) to take the prefixes from,
                such as a teacher's search, written by a run of rollout `search`; "": the policy searches by itself in
                every step, and what that generates is charged
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
        _ = self._search  # raises here for settings that the search refuses

    @property
    def _search(self) -> Search:
        return Search(self.terminals, self.width, chunks=self.chunks)

    @cached_property
    def _prefixes_of_file(self) -> Mapping[str, list[Prefix]]:
        """Prefixes of the file by task, read once."""
        forest = load(self.tree)
        if not bool((forest.segment >= 0).any()):
            raise ConfigError(f"rollout.tree: {self.tree} has no segments, so no prefix can end anywhere in it")
        return beginnings(forest)

    def grow(self, tasks: Sequence[Task], session: Session) -> Forest:
        prefixes_by_task = self._prefixes_of_file if self.tree else self._search_prefixes(tasks, session)
        limit, groups = session.sampling.max_new_tokens, []
        for task, draw in zip(tasks, name_draws(tasks), strict=True):
            # a prefix as long as an answer leaves no room for a completion
            usable = [p for p in prefixes_by_task.get(task.id, [Prefix()]) if len(p.tokens) < limit]
            draws = random_for(session, draw, "prefix")
            prompt = session.encode(task)
            groups.append([_Attempt(task, draw, i, prompt, draws.choice(usable)) for i in range(self.group_size)])
        self._complete([attempt for group in groups for attempt in group], session)
        forest = Forest.from_records([line for group in groups for line in _records(group, session)])
        return session.score(forest)

    def _search_prefixes(self, tasks: Sequence[Task], session: Session) -> dict[str, list[Prefix]]:
        distinct = list({task.id: task for task in tasks}.values())
        search_forest = self._search.grow(distinct, session)
        session.budget.discarded += search_forest.n_trajectories
        return beginnings(search_forest)

    @staticmethod
    def _complete(attempts: Sequence[_Attempt], session: Session) -> None:
        """Sample the completion of every attempt."""
        requests = [Request((*a.prompt, *a.prefix.tokens), (stream(session, a.draw, a.number),)) for a in attempts]
        rooms = [session.sampling.max_new_tokens - len(a.prefix.tokens) for a in attempts]
        for attempt, (completion,) in zip(attempts, sample_within(session, requests, rooms), strict=True):
            attempt.completion = completion


@dataclass(eq=False)
class _Attempt:
    task: Task
    draw: str
    number: int
    prompt: tuple[int, ...]
    prefix: Prefix
    completion: Completion | None = None


def _records(group: Sequence[_Attempt], session: Session) -> Iterator[dict[str, Any]]:
    """Yield the records of a group; each attempt forks from the earlier one that shares most of its prefix."""
    for i, attempt in enumerate(group):
        completion, tokens, begins = (
            attempt.completion,
            attempt.prefix.tokens,
            [*attempt.prefix.begins, len(attempt.prefix.tokens)],
        )
        assert completion is not None
        # of equally long shares the earliest attempt, so that many fork from one
        n_shared, base = max(
            ((_common(tokens, other.prefix.tokens), -j) for j, other in enumerate(group[:i])), default=(0, 0)
        )
        name = group_of(session, attempt.draw)
        prefix_rest = Completion([*tokens[n_shared:]], [math.nan] * (len(tokens) - n_shared), "stop")
        columns: dict[str, Any] = {"prompt": list(attempt.prompt)}
        if n_shared:
            columns = {"fork": {"of": f"{name}/{-base}", "turn": 0, "token": n_shared}}
        # the prefix is given, not sampled: untrained, and without log-probs
        turn = action(prefix_rest, completion) | {
            "trainable": [False] * len(prefix_rest.tokens) + [True] * len(completion.tokens),
            "segments": [b - n_shared for b in begins if b >= n_shared],
            "state": attempt.task.id,
        }
        yield record(
            attempt.task,
            name,
            f"{name}/{attempt.number}",
            session.sampling,
            **columns,
            turns=[turn],
            truncated=completion.finish == "length",
            info={"prefix": len(tokens)},
        )


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the number of first tokens that are the same."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
