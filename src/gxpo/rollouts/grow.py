"""Names, random streams, requests and records of attempts that leave one another: what all rollouts share."""

from __future__ import annotations

import dataclasses
import math
import random
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.functional import pad

from gxpo.protocols import Completion, Request, Sampling, Session, StreamKey, Task


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
