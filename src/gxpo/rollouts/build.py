"""What all rollouts share: names of groups and attempts, random streams, requests, records, forests of samples."""

from __future__ import annotations

import dataclasses
import math
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Annotated, Any

import torch
from annotated_types import Ge, MinLen
from torch.nn.functional import pad

from gxpo.forest import Forest
from gxpo.protocols import Completion, Request, Sampling, Session, StreamKey, Task
from gxpo.ranges import Part

Count = Annotated[int, Ge(1)]
Limit = Annotated[int, Ge(0)]  # 0: none, or all
Text = Annotated[str, MinLen(1)]


class RolloutPart(Part):
    """Base of rollouts: their options are `rollout.NAME`, checked against the annotations."""

    slot = "rollout"


def name_draws(tasks: Sequence[Task], drawn: Counter[str] | None = None) -> list[str]:
    """A name for each draw of a task within a step: its id, then id#1, id#2... where it is drawn again.

    `drawn` counts the draws of the step so far, and is counted on.

    >>> a, b = Task("a", "?"), Task("b", "?")
    >>> name_draws([a, b, a])
    ['a', 'b', 'a#1']
    """
    drawn, names = Counter() if drawn is None else drawn, []
    for task in tasks:
        names.append(f"{task.id}#{drawn[task.id]}" if drawn[task.id] else task.id)
        drawn[task.id] += 1
    return names


def group_of(session: Session, draw: str) -> str:
    """Name of the group of a drawn task: "s{step}/{draw}"."""
    return f"s{session.step}/{draw}"


def stream(session: Session, draw: str, attempt: int = 0, path: tuple[int, ...] = (), turn: int = 0) -> StreamKey:
    """The random stream of one action: (seed, step, draw, attempt, path, turn)."""
    return StreamKey(session.seed, session.step, draw, attempt, path, turn)


def keyed(session: Session, *names: object) -> random.Random:
    """Random numbers for one decision of a rollout, whatever else is in the batch."""
    return random.Random("/".join(map(str, (session.seed, session.step, *names))))


def dotted(key: StreamKey) -> str:
    """Attempt and path of a stream as a name.

    >>> dotted(StreamKey(0, 1, "task", 3, (0, 1)))
    '3.0.1'
    """
    return ".".join(map(str, (key.attempt, *key.path)))


def requests(
    prompts: Sequence[tuple[int, ...]],
    draws: Sequence[str],
    group_size: int,
    session: Session,
) -> list[Request]:
    """`group_size` samples of each prompt; attempt i of a draw has the stream (seed, step, draw, i) of its own."""
    return [
        Request(
            prompt,
            tuple(StreamKey(session.seed, session.step, draw, attempt) for attempt in range(group_size)),
        )
        for prompt, draw in zip(prompts, draws, strict=True)
    ]


def sample_within(
    session: Session, requests: Sequence[Request], rooms: Sequence[int], sampling: Sampling | None = None
) -> list[list[Completion]]:
    """Completions of requests that may each have so many tokens at most, in order; those of one limit together."""
    together: dict[int, list[int]] = defaultdict(list)
    for i, room in enumerate(rooms):
        together[room].append(i)
    out: list[list[Completion]] = [[] for _ in requests]
    for room, chosen in sorted(together.items(), reverse=True):
        limited = dataclasses.replace(sampling or session.sampling, max_new_tokens=room)
        for i, found in zip(chosen, session.sample([requests[i] for i in chosen], limited), strict=True):
            out[i] = found
    return out


def action(*pieces: Completion) -> dict[str, Any]:
    """A record's turn whose action is these pieces, one after the other; it ended as the last of them did.

    Where some were sampled under top-k or top-p, a token of the others has itself for a support.
    """
    last, extras = pieces[-1], {}
    if any(piece.support is not None for piece in pieces):
        own = [torch.tensor(p.tokens)[:, None] if p.support is None else torch.as_tensor(p.support) for p in pieces]
        widest = max(block.shape[1] for block in own)
        extras["support"] = torch.cat([pad(b.to(torch.int64), (0, widest - b.shape[1]), value=-1) for b in own])
    return {
        "action": [token for piece in pieces for token in piece.tokens],
        "logprob": [None if math.isnan(x) else x for piece in pieces for x in piece.logprobs],
        "finish": last.finish,
        "policy_version": last.policy_version,
        "extras": extras,
    }


def record(task: Task, group: str, name: str, sampling: Sampling, **columns: Any) -> dict[str, Any]:
    """A line of `gxpo.rollouts/1` of an attempt that is not scored yet; `columns`: its prompt or fork, its turns..."""
    return {
        "schema": "gxpo.rollouts/1",
        "task": task.id,
        "group": group,
        "id": name,
        "prompt_text": task.prompt if isinstance(task.prompt, str) else None,
        "reward": None,
        "sampling": dataclasses.asdict(sampling),
        **columns,
    }


def forest_of(
    tasks: Sequence[Task],
    groups: Sequence[str],
    prompts: Sequence[tuple[int, ...]],
    completions: Sequence[Sequence[Completion]],
    sampling: Sampling,
    ids: Sequence[str] | None = None,
) -> Forest:
    """Single-turn groups as sampled, not scored: a task, group name, prompt and list of completions each.

    ids  of all attempts in order; default: GROUP/0, GROUP/1, ...
    """
    flat = [c for group in completions for c in group]
    forest = Forest.from_completions(
        prompts,
        [[c.tokens for c in group] for group in completions],
        groups=groups,
        tasks=[task.id for task in tasks],
        logprobs=[[c.logprobs for c in group] for group in completions],
        truncated=[c.finish == "length" for c in flat],
        finish=[c.finish for c in flat],
        support=[None if c.support is None else torch.as_tensor(c.support) for c in flat],
        sampling=dataclasses.asdict(sampling),
        ids=ids or [f"{name}/{i}" for name, group in zip(groups, completions, strict=True) for i in range(len(group))],
    )
    names = list(dict.fromkeys(forest.task))
    place = {name: i for i, name in enumerate(names)}
    state = torch.tensor([place[task] for task in forest.task], dtype=torch.int64)
    node_state = forest.state.clone()
    node_state[forest.last_action] = state
    version = forest.policy_version.clone()
    version[forest.last_action] = torch.tensor([c.policy_version for c in flat], dtype=version.dtype)
    return forest.replace(
        policy_version=version,
        state=node_state,
        step_state=state,
        state_names=tuple(names),
        prompt_text=[
            t.prompt if isinstance(t.prompt, str) else None for t, g in zip(tasks, completions, strict=True) for _ in g
        ],
    )
