"""Building blocks of rollouts: names and random streams of attempts, requests to the engine, records, forests.

`RolloutPart` is the base class of all rollouts. An attempt itself is in `gxpo.sampling.rollouts.attempts`.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
import torch
from annotated_types import Ge, MinLen
from torch import Tensor
from torch.nn.functional import pad

from gxpo.forest.forest import Forest
from gxpo.forest.reshape import scatter_blocks
from gxpo.parts.protocols import (
    LIKELIEST,
    Completion,
    Request,
    Sampling,
    Session,
    StreamKey,
    Task,
)
from gxpo.parts.ranges import Part

if TYPE_CHECKING:
    from gxpo.forest.token_bias import TokenBias

Count = Annotated[int, Ge(1)]
Limit = Annotated[int, Ge(0)]  # 0: no limit, or none of it, as each option says
Text = Annotated[str, MinLen(1)]
AGENT = "agent"
LIMITS = ("turns", "context")  # ends of an episode that was cut


class RolloutPart(Part):
    """Base class of rollouts; their options are `rollout.NAME`, checked against the annotations.

    allows    setting of the run -> (the values that this rollout works with, the reason why no others do)
    requires  what the tasks must provide, such as "restarts"
    provides  what the rollouts carry beyond their text, such as "states"
    components   names of the rewards that the rollout brings itself
    models    role -> checkpoint whose weights play it, untrained
    single_turn  for tasks with one answer only
    drops_equal_groups  groups of equal rewards are left out
    samples_prompts     samples are drawn under the task's own prompt
    has_behaviour       the log-probs of the sampler are known
    """

    slot = "rollout"
    allows: ClassVar[Mapping[str, tuple[tuple[Any, ...], str]]] = {}
    requires: ClassVar[tuple[str, ...]] = ()
    provides: ClassVar[tuple[str, ...]] = ()
    components: ClassVar[tuple[str, ...]] = ()
    models: ClassVar[Mapping[str, str]] = {}
    single_turn: ClassVar[bool] = False
    samples_prompts: ClassVar[bool] = True
    has_behaviour: ClassVar[bool] = True
    drops_equal_groups: ClassVar[bool] = False

    def check_sampling(self, sampling: Sampling) -> None:
        """Raise ConfigError for sampling settings of the run that this rollout can't work with."""

    @property
    def across_groups(self) -> bool:
        """True if a task's rollouts depend on other tasks or on earlier steps, which asynchronous training refuses."""
        # a part that is saved remembers earlier steps, unless its options say that it stores nothing
        return hasattr(self, "state_dict") and bool(getattr(self, "remembers", True))


def name_draws(tasks: Sequence[Task], counts: Counter[str] | None = None) -> list[str]:
    """Name each draw of a task within a step: its id, then id#1, id#2... where it is drawn again.

    `counts` holds the draws of the step so far and is updated; None: these are the first.

    >>> a, b = Task("a", "?"), Task("b", "?")
    >>> name_draws([a, b, a])
    ['a', 'b', 'a#1']
    """
    counts, names = Counter() if counts is None else counts, []
    for task in tasks:
        names.append(f"{task.id}#{counts[task.id]}" if counts[task.id] else task.id)
        counts[task.id] += 1
    return names


def group_of(session: Session, draw: str) -> str:
    """Return the group name of a drawn task: "s{step}/{draw}"."""
    return f"s{session.step}/{draw}"


def stream(session: Session, draw: str, attempt: int = 0, path: tuple[int, ...] = (), turn: int = 0) -> StreamKey:
    """Return the random stream of one action: (seed, step, draw, attempt, path, turn)."""
    return StreamKey(session.seed, session.step, draw, attempt, path, turn)


def random_for(session: Session, *names: object) -> random.Random:
    """Return random numbers for one decision of a rollout, independent of everything else in the batch."""
    return random.Random("/".join(map(str, (session.seed, session.step, *names))))


def dotted_name(key: StreamKey) -> str:
    """Format attempt and path of a stream as the last part of an id.

    >>> dotted_name(StreamKey(0, 1, "task", 3, (0, 1)))
    '3.0.1'
    """
    return ".".join(map(str, (key.attempt, *key.path)))


def requests(
    prompts: Sequence[tuple[int, ...]],
    draws: Sequence[str],
    group_size: int,
    session: Session,
) -> list[Request]:
    """Build one request of `group_size` samples for each prompt; sample i has the stream (seed, step, draw, i)."""
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
    """Sample requests that each have a token limit of their own; the completions are in the order of the requests.

    rooms  most new tokens of each request
    """
    # the engine has one limit for a whole call, so requests of equal limits are sampled together
    by_room: dict[int, list[int]] = defaultdict(list)
    for i, room in enumerate(rooms):
        by_room[room].append(i)
    out: list[list[Completion]] = [[] for _ in requests]
    for room, positions in sorted(by_room.items(), reverse=True):
        short_sampling = dataclasses.replace(sampling or session.sampling, max_new_tokens=room)
        for i, samples in zip(positions, session.sample([requests[i] for i in positions], short_sampling), strict=True):
            out[i] = samples
    return out


def first_best(reward: Sequence[float]) -> int:
    """Return the index of the first of the largest rewards; nan ranks below every number.

    >>> first_best([1.0, 2.0, 2.0]), first_best([math.nan, -1.0])
    (1, 1)
    """
    return max(range(len(reward)), key=lambda i: -math.inf if math.isnan(reward[i]) else reward[i])


def action(*pieces: Completion) -> dict[str, Any]:
    """Build a record's turn whose action is these pieces, one after the other; it ends as the last of them does.

    Where some pieces were sampled under top-k or top-p, each token of the others is its own support.
    """
    from gxpo.forest.token_bias import BIAS, PENALTY, to_records

    last, extras = pieces[-1], {}
    for name in payload(pieces):
        extras[name] = extra_of(pieces, name)
    # supports differ in width from call to call: padded with -1, which is no id, they are one tensor [T, K]
    if any(piece.support is not None for piece in pieces):
        supports = [
            torch.tensor(p.tokens)[:, None] if p.support is None else torch.as_tensor(p.support) for p in pieces
        ]
        width = max(block.shape[1] for block in supports)
        extras["support"] = torch.cat([pad(b.to(torch.int64), (0, width - b.shape[1]), value=-1) for b in supports])
    # a piece without them was sampled from unchanged logits: no bias, and penalties that do nothing
    for name, nothing, dtype in ((BIAS, -1, torch.int64), (PENALTY, [0.0, 0.0, 1.0, 0.0], torch.float64)):
        blocks = [getattr(piece, name) for piece in pieces]
        if any(x is not None for x in blocks):
            neutral = torch.tensor(nothing, dtype=dtype)
            extras[name] = torch.cat(
                [
                    neutral.expand(len(p.tokens), *neutral.shape) if x is None else torch.as_tensor(x)
                    for p, x in zip(pieces, blocks, strict=True)
                ]
            )
    return {
        "action": [token for piece in pieces for token in piece.tokens],
        "logprob": [x if x == x else None for piece in pieces for x in piece.logprobs],  # nan is unknown
        "finish": last.finish,
        "policy_version": last.policy_version,
        "extras": extras,
        "biases": to_records(biases_of(pieces), extras[BIAS].tolist()) if BIAS in extras else {},
        **_versions(pieces),
    }


def extra_of(pieces: Sequence[Completion], name: str) -> Tensor:
    """Concatenate what an engine has recorded under a name: [T, ...], the rows of all pieces."""
    blocks = [piece.extras[name] for piece in pieces]
    return torch.from_numpy(blocks[0] if len(blocks) == 1 else np.concatenate(blocks))


def biases_of(pieces: Sequence[Completion]) -> dict[int, TokenBias]:
    """Biases of all pieces, by hash."""
    return {key: bias for piece in pieces for key, bias in piece.biases.items()}


def payload(pieces: Sequence[Completion]) -> list[str]:
    """Names of what an engine has recorded of every token besides its id in all of these pieces: one number, or the
    distribution that it was drawn from."""
    names = [{name for name, x in piece.extras.items() if x.ndim == 1 or name in LIKELIEST} for piece in pieces]
    return sorted(set.intersection(*names)) if names else []


def _versions(pieces: Sequence[Completion]) -> dict[str, Any]:
    """Return the columns for an action during which the policy's version changed; none if no piece changed it."""
    if not any(piece.versions for piece in pieces):
        return {}
    starts, offset = [], 0  # (token, version that samples from there on), over all pieces
    for piece in pieces:
        starts += [(offset, piece.policy_version), *((offset + token, version) for token, version in piece.versions)]
        offset += len(piece.tokens)
    changes = [[t, v] for (_, before), (t, v) in itertools.pairwise(starts) if v != before and 0 < t < offset]
    return {"policy_version": starts[0][1], "versions": changes}


def record(task: Task, group: str, name: str, sampling: Sampling, **columns: Any) -> dict[str, Any]:
    """Build the `gxpo.rollouts/1` record of an unscored attempt; `columns`: its prompt or fork, its turns..."""
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


# ---------------------------------------------------------------- samples of prompts, all at once
def forest_of(
    tasks: Sequence[Task],
    groups: Sequence[str],
    prompts: Sequence[tuple[int, ...]],
    completions: Sequence[Sequence[Completion]],
    sampling: Sampling,
    ids: Sequence[str] | None = None,
) -> Forest:
    """Build the unscored forest of single-turn groups: for each a task, a group name, a prompt and its completions.

    ids  names of all attempts in order; default: GROUP/0, GROUP/1, ...
    """
    from gxpo.forest.token_bias import BIAS, PENALTY

    flat_completions = [c for group in completions for c in group]
    forest = Forest.from_completions(
        prompts,
        [[c.tokens for c in group] for group in completions],
        groups=groups,
        tasks=[task.id for task in tasks],
        logprobs=[[c.logprobs for c in group] for group in completions],
        truncated=[c.finish == "length" for c in flat_completions],
        finish=[c.finish for c in flat_completions],
        support=[None if c.support is None else torch.as_tensor(c.support) for c in flat_completions],
        sampling=dataclasses.asdict(sampling),
        ids=ids or [f"{name}/{i}" for name, group in zip(groups, completions, strict=True) for i in range(len(group))],
    )
    # a prompt has one decision, so its state is the task itself, shared by all draws of it
    names = list(dict.fromkeys(forest.task))
    state_index = {name: i for i, name in enumerate(names)}
    state_index_R = torch.tensor([state_index[task] for task in forest.task], dtype=torch.int64)
    node_state = forest.state.clone()
    node_state[forest.last_action] = state_index_R
    # asynchronous engines may have sampled each completion under another version of the policy
    version = forest.policy_version.clone()
    version[forest.last_action] = torch.tensor([c.policy_version for c in flat_completions], dtype=version.dtype)
    first = forest.first_token[forest.last_action].tolist()
    extras = {
        name: scatter_blocks(
            [(at, torch.from_numpy(c.extras[name])) for at, c in zip(first, flat_completions, strict=True)],
            forest.n_tokens,
        )
        for name in payload(flat_completions)
    }
    for name in (BIAS, PENALTY):
        arrays = [(at, getattr(c, name)) for at, c in zip(first, flat_completions, strict=True)]
        if blocks := [(at, torch.as_tensor(x)) for at, x in arrays if x is not None]:
            extras[name] = scatter_blocks(blocks, forest.n_tokens)
    return forest.replace(
        extras={**forest.extras, **extras},
        biases=biases_of(flat_completions),
        policy_version=version,
        state=node_state,
        step_state=state_index_R,
        state_names=tuple(names),
        prompt_text=[
            t.prompt if isinstance(t.prompt, str) else None for t, g in zip(tasks, completions, strict=True) for _ in g
        ],
    )
