"""Forests from what other code holds: lists of completions, padded tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gxpo.forest import ACTION, PROMPT, Forest
from gxpo.trees import NAN, scatter_blocks


def _flat(values: Any, counts: Sequence[int], name: str) -> list[Any]:
    """One value per completion, given flat or nested as the completions are."""
    values = values.tolist() if isinstance(values, Tensor) else list(values)
    if any(isinstance(v, list | tuple) for v in values):
        if [len(v) if isinstance(v, list | tuple) else -1 for v in values] != list(counts):
            raise ValueError(f"{name} is nested otherwise than the completions, which are {list(counts)} by prompt")
        values = [v for group in values for v in group]
    if len(values) != sum(counts):
        raise ValueError(f"{name} has {len(values)} values; there are {sum(counts)} completions")
    return values


def _column(values: Any, counts: Sequence[int], absent: Any, dtype: torch.dtype, name: str) -> Tensor:
    given = [None] * sum(counts) if values is None else _flat(values, counts, name)
    return torch.tensor([absent if v is None else v for v in given], dtype=dtype)


def _sequences(nested: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
    """The sequences of all groups; arrays and tensors as lists."""
    every = (c for group in nested for c in group)
    return [c if isinstance(c, list | tuple) else c.tolist() if hasattr(c, "tolist") else list(c) for c in every]


def _joined(sequences: Sequence[Sequence[Any]], dtype: type, n: int) -> Tensor:
    """All their values, `n` in number, in one column."""
    return torch.from_numpy(np.fromiter(chain.from_iterable(sequences), dtype, n))


def from_completions(
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[Sequence[int]]],
    rewards: Sequence[float | None] | Tensor | None = None,
    *,
    groups: Sequence[str] | None = None,
    tasks: Sequence[str] | None = None,
    logprobs: Sequence[Sequence[Sequence[float]]] | None = None,
    success: Sequence[float | None] | Tensor | None = None,
    truncated: Sequence[bool] | Tensor | None = None,
    finish: Sequence[str | None] | None = None,
    support: Sequence[Tensor | None] | None = None,
    sampling: Mapping[str, Any] | None = None,
    policy_version: int = 0,
    origin: str = "policy",
    ids: Sequence[str] | None = None,
    info: Sequence[Mapping[str, Any]] | None = None,
) -> Forest:
    """Single-turn groups: `completions[i]` are the samples of `prompts[i]`, token ids throughout.

    A group per prompt: `groups` and `tasks` name them (default "0", "1", ...; a task is its group), and prompts that
    are given one name are one group. Equal prompts are stored once; they are not one group for that. The other columns
    hold one value per completion, flat in order or nested as `completions`: `rewards` (None or nan = unscored),
    `success`, `truncated`; flat only: `finish`, `ids`, `info`, `support` ([tokens, K] allowed ids padded with -1, or
    None). `logprobs` has a value (None unknown) for each token of `completions`. ValueError where lengths differ.
    """
    if len(prompts) != len(completions):
        raise ValueError(f"{len(prompts)} prompts and {len(completions)} groups of completions")
    names = [str(i) for i in range(len(prompts))] if groups is None else [str(g) for g in groups]
    task_names = names if tasks is None else [str(t) for t in tasks]
    for what, given in (("groups", names), ("tasks", task_names)):
        if len(given) != len(prompts):
            raise ValueError(f"{what} has {len(given)} names for {len(prompts)} prompts")
    flat = _sequences(completions)
    counts = [len(group) for group in completions]
    n = len(flat)
    if ids is not None and len(set(ids)) != n:
        raise ValueError(f"ids must be {n} distinct names, one per completion")
    prompt_nodes: dict[tuple[int, ...], int] = {}
    parent, action_nodes, prompt_node = [], [], []
    runs: list[Sequence[int]] = []  # of each node
    row = 0
    for prompt, count in zip(prompts, counts, strict=True):
        key = tuple(map(int, prompt))
        if key and key not in prompt_nodes:
            prompt_nodes[key] = len(parent)
            parent.append(-1)
            runs.append(key)
        for _ in range(count):
            prompt_node.append(prompt_nodes.get(key, -1))
            action_nodes.append(len(parent))
            parent.append(prompt_nodes.get(key, -1))
            runs.append(flat[row])
            row += 1
    first = torch.tensor([0, *map(len, runs)], dtype=torch.int64).cumsum(0)
    n_nodes, n_tokens = len(parent), int(first[-1])
    actions = torch.tensor(action_nodes, dtype=torch.int64)
    is_action = torch.zeros(n_nodes, dtype=torch.bool)
    is_action[actions] = True
    on_action = torch.repeat_interleave(is_action, first.diff())
    path_token = on_action.nonzero().squeeze(1)
    owner = torch.repeat_interleave(torch.arange(n), first.diff()[actions])
    behaviour = torch.full((n_tokens,), NAN, dtype=torch.float64)
    if logprobs is not None:
        given = _sequences(logprobs)
        if list(map(len, given)) != list(map(len, flat)):
            raise ValueError("logprobs must have one value for each token of each completion")
        behaviour[path_token] = _joined(given, np.float64, len(path_token))  # None becomes nan
    extras: dict[str, Tensor] = {}
    if support is not None:
        if [len(flat[i]) if s is None else len(s) for i, s in enumerate(support)] != [len(c) for c in flat]:
            raise ValueError("support must have one row for each token of each completion, or be None for it")
        blocks = [(int(first[node]), s) for node, s in zip(action_nodes, support, strict=True) if s is not None]
        if blocks:
            extras["support"] = scatter_blocks(blocks, n_tokens)
    mark = torch.where(is_action, 0, -1)
    none = torch.full((n_nodes,), -1)
    group_of = [name for name, count in zip(names, counts, strict=True) for _ in range(count)]
    return Forest(
        parent=torch.tensor(parent, dtype=torch.int64),
        previous=none,
        kind=torch.where(is_action, ACTION, PROMPT),
        agent=mark,
        policy=mark,
        policy_version=torch.where(is_action, policy_version, -1),
        caller=none,
        turn=mark,
        state=none,
        sampled_under=none,
        first_token=first,
        token=_joined(runs, np.int64, n_tokens),
        behaviour_logprob=behaviour,
        trainable=on_action,
        segment=torch.full((n_tokens,), -1),
        step_trajectory=torch.arange(n),
        step_turn=torch.zeros(n, dtype=torch.int64),
        step_action=actions,
        step_state=torch.full((n,), -1),
        step_agent=torch.zeros(n, dtype=torch.int64),
        step_reward=torch.full((n,), NAN, dtype=torch.float64),
        step_previous=torch.full((n,), -1),
        path_token=path_token,
        path_step=owner,
        path_trajectory=owner,
        id=[f"t{i}" for i in range(n)] if ids is None else list(ids),
        task=[name for name, count in zip(task_names, counts, strict=True) for _ in range(count)],
        group=group_of,
        last_action=actions,
        outcome=_column(rewards, counts, NAN, torch.float64, "rewards"),
        components=torch.empty(n, 0, dtype=torch.float64),
        success=_column(success, counts, NAN, torch.float64, "success"),
        compared=torch.ones(n, dtype=torch.bool),
        weight=torch.ones(n, dtype=torch.float64),
        truncated=_column(truncated, counts, False, torch.bool, "truncated"),
        origin=[origin] * n,
        sampling=[dict(sampling or {}) for _ in range(n)],
        prompt_node=torch.tensor(prompt_node, dtype=torch.int64),
        agent_names=("agent",),
        policy_names=("main",),
        info=[dict(i) for i in info] if info is not None else [{} for _ in range(n)],
        prompt_text=[None] * n,
        final_state=[None] * n,
        final_observation=[[] for _ in range(n)],
        step_finish=list(finish) if finish is not None else [None] * n,
        step_info=[{} for _ in range(n)],
        observation_text=[None] * n,
        action_text=[None] * n,
        extras=extras,
    )


def from_padded(
    input_ids: Tensor,
    completion_mask: Tensor,
    rewards: Tensor,
    group: Sequence[Any] | Tensor,
    logprobs: Tensor | None = None,
    *,
    attention_mask: Tensor | None = None,
    success: Sequence[float | None] | Tensor | None = None,
) -> Forest:
    """Trajectories from padded rows, as TRL and verl hold them; padding on either side changes nothing.

    input_ids        [B, L] prompt and completion; completion_mask [B, C], C <= L: 1 on the policy's own tokens, for the
                     last C columns. A gap inside (tool output) is an observation and opens a new turn.
    attention_mask   [B, L]: 0 on padding. Without it, nothing before a row's last own token is taken for padding (so
                     left-padded prompts need it), and all after it is. Without own tokens a row is its first L - C.
    rewards [B] (nan = unscored), group [B] opaque ids; logprobs [B, C] or [B, L] of the sampler, aligned with the
    tokens (nan = unknown). success [B]: the verdicts, 1 right and 0 wrong (None or nan = unknown), which methods that
    count successes read. Raises ValueError where shapes differ.
    """
    rows, width = input_ids.shape
    for name, x in (("completion_mask", completion_mask), ("logprobs", logprobs)):
        if x is not None and (x.dim() != 2 or x.shape[0] != rows or x.shape[1] > width):
            raise ValueError(f"{name} {tuple(x.shape)} does not fit input_ids {(rows, width)}")
    if attention_mask is not None and attention_mask.shape != input_ids.shape:
        raise ValueError(f"attention_mask {tuple(attention_mask.shape)} does not fit input_ids {(rows, width)}")
    names = [str(g.item() if isinstance(g, Tensor) else g) for g in group]
    if len(names) != rows or rewards.shape != (rows,) or (success is not None and len(success) != rows):
        raise ValueError(f"group, rewards and success need one value for each of the {rows} rows")
    own = torch.zeros(rows, width, dtype=torch.bool)
    own[:, width - completion_mask.shape[1] :] = completion_mask.bool()
    seen = torch.full((rows, width), NAN, dtype=torch.float64)
    if logprobs is not None:
        seen[:, width - logprobs.shape[1] :] = logprobs.to(torch.float64)
    if attention_mask is None:
        column = torch.arange(width)
        end = torch.where(own, column + 1, 0).amax(1) if width else torch.zeros(rows)
        end = torch.where(own.any(1), end, width - completion_mask.shape[1])
        real = column[None, :] < end[:, None]
    else:
        real = attention_mask.bool() | own
    from gxpo.schema import SCHEMA  # pydantic, which the forests of `from_completions` do without

    records = []
    for b in range(rows):
        kept = real[b]
        reward = float(rewards[b])
        record = {"schema": SCHEMA, "id": f"t{b}", "group": names[b], "reward": reward if reward == reward else None}
        values = [None if x != x else x for x in seen[b, kept].tolist()]
        records.append(record | _turns(input_ids[b, kept].tolist(), own[b, kept].tolist(), values))
    verdicts = _column(success, [rows], NAN, torch.float64, "success")
    return Forest.from_records(records).replace(success=verdicts)


def _turns(tokens: list[int], own: list[bool], logprob: list[float | None]) -> dict[str, Any]:
    """Prompt, turns and final observation of one row without padding."""
    edges = [i for i in range(len(own)) if not i or own[i] != own[i - 1]]
    runs = [slice(a, b) for a, b in zip(edges, [*edges[1:], len(own)], strict=True)]
    prompt = tokens[runs.pop(0)] if runs and not own[0] else []
    turns: list[dict[str, Any]] = []
    for action, before in zip(runs[::2], [None, *runs[1::2]], strict=False):
        turns.append({"action": tokens[action], "logprob": logprob[action]})
        if before is not None:
            turns[-1]["observation"] = tokens[before]
    after = tokens[runs[-1]] if len(runs) % 2 == 0 and runs else []
    return {"prompt": prompt, "turns": turns or [{"action": []}], "final_observation": after}
