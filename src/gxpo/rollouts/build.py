"""What rollout parts share: names of groups, streams of random numbers, a forest from what was sampled."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence

import torch

from gxpo.forest import Forest
from gxpo.protocols import Completion, Request, Sampling, Session, StreamKey, Task
from gxpo.ranges import Part


class RolloutPart(Part):
    """Base of rollouts: their options are `rollout.NAME`, checked against the annotations."""

    slot = "rollout"


def name_draws(tasks: Sequence[Task], drawn: Counter[str]) -> list[str]:
    """A name for each draw of a task within a step: its id, then id#1, id#2... where it is drawn again.

    `drawn` counts the draws of the step so far, and is counted on.

    >>> a, b = Task("a", "?"), Task("b", "?")
    >>> name_draws([a, b, a], Counter())
    ['a', 'b', 'a#1']
    """
    names = []
    for task in tasks:
        names.append(f"{task.id}#{drawn[task.id]}" if drawn[task.id] else task.id)
        drawn[task.id] += 1
    return names


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
