"""Forests from what other code holds: lists of completions, padded tensors, other forests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gxpo.forest import ACTION, PROMPT, Forest

NAN = float("nan")


def _column(values: Sequence[Any] | Tensor | None, n: int, default: Any, dtype: torch.dtype, name: str) -> Tensor:
    if values is None:
        return torch.full((n,), default, dtype=dtype)
    if not isinstance(values, Tensor):
        values = torch.tensor([default if v is None else v for v in values], dtype=dtype)
    if values.shape != (n,):
        raise ValueError(f"{name} has shape {tuple(values.shape)}; there are {n} trajectories")
    return values.to(dtype)


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

    A group per prompt: `groups` and `tasks` name them (default "0", "1", ...; a task is its group). The other columns
    are flat, one value per completion in order: `rewards` (None or nan = unscored), `success`, `truncated`, `finish`,
    `support` ([tokens, K] allowed ids padded with -1, or None), `ids`, `info`. `logprobs` is nested as `completions`.
    """
    if len(prompts) != len(completions):
        raise ValueError(f"{len(prompts)} prompts and {len(completions)} groups of completions")
    names = [str(i) for i in range(len(prompts))] if groups is None else list(groups)
    task_names = names if tasks is None else list(tasks)
    flat = [list(c) for group in completions for c in group]
    counts = [len(group) for group in completions]
    n = len(flat)
    prompt_nodes: dict[tuple[int, ...], int] = {}
    parent, sizes, token, action_nodes, prompt_node = [], [], [], [], []
    row = 0
    for prompt, count in zip(prompts, counts, strict=True):
        key = tuple(int(t) for t in prompt)
        if key and key not in prompt_nodes:
            prompt_nodes[key] = len(parent)
            parent.append(-1)
            sizes.append(len(key))
            token.extend(key)
        for _ in range(count):
            prompt_node.append(prompt_nodes.get(key, -1))
            action_nodes.append(len(parent))
            parent.append(prompt_nodes.get(key, -1))
            sizes.append(len(flat[row]))
            token.extend(flat[row])
            row += 1
    n_nodes, n_tokens = len(parent), len(token)
    first = torch.tensor([0, *sizes], dtype=torch.int64).cumsum(0)
    actions = torch.tensor(action_nodes, dtype=torch.int64)
    is_action = torch.zeros(n_nodes, dtype=torch.bool)
    is_action[actions] = True
    on_action = torch.repeat_interleave(is_action, first.diff())
    path_token = on_action.nonzero().squeeze(1)
    owner = torch.repeat_interleave(torch.arange(n), first.diff()[actions])
    behaviour = torch.full((n_tokens,), NAN, dtype=torch.float64)
    if logprobs is not None:
        values = torch.tensor([x for group in logprobs for c in group for x in c], dtype=torch.float64)
        if values.numel() != path_token.numel():
            raise ValueError(f"{values.numel()} log-probs for {path_token.numel()} completion tokens")
        behaviour[path_token] = values
    extras: dict[str, Tensor] = {}
    if support is not None and any(s is not None for s in support):
        width = max(s.shape[1] for s in support if s is not None)
        extras["support"] = torch.full((n_tokens, width), -1, dtype=torch.int64)
        for node, allowed in zip(action_nodes, support, strict=True):
            if allowed is not None:
                at = int(first[node])
                extras["support"][at : at + allowed.shape[0], : allowed.shape[1]] = allowed
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
        token=torch.tensor(token, dtype=torch.int64),
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
        outcome=_column(rewards, n, NAN, torch.float64, "rewards"),
        components=torch.empty(n, 0, dtype=torch.float64),
        success=_column(success, n, NAN, torch.float64, "success"),
        compared=torch.ones(n, dtype=torch.bool),
        weight=torch.ones(n, dtype=torch.float64),
        truncated=_column(truncated, n, False, torch.bool, "truncated"),
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
) -> Forest:
    """Trajectories from padded rows, as TRL and verl hold them; padding on either side changes nothing.

    input_ids        [B, L] prompt and completion; completion_mask [B, C], C <= L: 1 on the policy's own tokens, for the
                     last C columns. A gap inside (tool output) is an observation and opens a new turn.
    attention_mask   [B, L]: 0 on padding. Without it, nothing before a row's last own token is taken for padding, so
                     left-padded prompts need it.
    rewards [B] (nan = unscored), group [B] opaque ids, logprobs [B, C] or [B, L] of the sampler, aligned with the tokens.
    """
    rows, width = input_ids.shape
    if completion_mask.shape[0] != rows or completion_mask.shape[1] > width:
        raise ValueError(f"completion_mask {tuple(completion_mask.shape)} does not fit input_ids {(rows, width)}")
    own = torch.zeros(rows, width, dtype=torch.bool)
    own[:, width - completion_mask.shape[1] :] = completion_mask.bool()
    real = torch.ones_like(own) if attention_mask is None else attention_mask.bool() | own
    seen = torch.full((rows, width), NAN, dtype=torch.float64)
    if logprobs is not None:
        seen[:, width - logprobs.shape[1] :] = logprobs.to(torch.float64)
    names = [str(g.item() if isinstance(g, Tensor) else g) for g in group]
    if len(names) != rows or rewards.shape != (rows,):
        raise ValueError(f"group and rewards need one value for each of the {rows} rows")
    records = []
    for b in range(rows):
        columns = real[b].nonzero().squeeze(1)
        mine = own[b, columns]
        if not bool(mine.any()):
            records.append(_row(b, names[b], rewards[b], input_ids[b, columns].tolist(), []))
            continue
        columns, mine = columns[: int(mine.nonzero()[-1]) + 1], mine[: int(mine.nonzero()[-1]) + 1]
        edges = (mine[1:] != mine[:-1]).nonzero().squeeze(1) + 1
        runs = [r for r in columns.tensor_split(edges.tolist()) if r.numel()]
        if not bool(mine[0]):
            prompt, runs = input_ids[b, runs[0]].tolist(), runs[1:]
        else:
            prompt = []
        turns = []
        for i in range(0, len(runs), 2):
            turn: dict[str, Any] = {"action": input_ids[b, runs[i]].tolist()}
            if i:
                turn["observation"] = input_ids[b, runs[i - 1]].tolist()
            if logprobs is not None:
                turn["logprob"] = [None if x != x else x for x in seen[b, runs[i]].tolist()]
            turns.append(turn)
        records.append(_row(b, names[b], rewards[b], prompt, turns))
    return Forest.from_records(records)


def _row(b: int, group: str, reward: Tensor, prompt: list[int], turns: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "schema": "gxpo.rollouts/1",
        "id": f"t{b}",
        "group": group,
        "prompt": prompt,
        "turns": turns or [{"action": []}],
        "reward": float(reward) if bool(torch.isfinite(reward)) else None,
    }


_NODE_REFERENCES = ("parent", "previous", "caller", "sampled_under")
_PLAIN = (
    "kind", "policy_version", "turn", "token", "behaviour_logprob", "trainable", "segment", "step_turn", "step_reward",
    "outcome", "success", "compared", "weight", "truncated",
)  # fmt: skip
_LISTS = (
    "task", "group", "origin", "sampling", "info", "prompt_text", "final_state", "final_observation", "step_finish",
    "step_info", "observation_text", "action_text",
)  # fmt: skip


def concat(forests: Sequence[Forest]) -> Forest:
    """All trajectories, in order. Names are merged; ids that collide get "+1", "+2"... appended."""
    if len(forests) == 1:
        return forests[0]
    out: dict[str, Any] = {name: torch.cat([getattr(f, name) for f in forests]) for name in _PLAIN}
    out |= {name: [x for f in forests for x in getattr(f, name)] for name in _LISTS}

    def offset(name: str, sizes: Sequence[int]) -> Tensor:
        columns, base = [], 0
        for f, size in zip(forests, sizes, strict=True):
            column = getattr(f, name)
            columns.append(torch.where(column >= 0, column + base, -1))
            base += size
        return torch.cat(columns)

    nodes, tokens = [f.n_nodes for f in forests], [f.n_tokens for f in forests]
    steps, rows = [f.n_steps for f in forests], [f.n_trajectories for f in forests]
    for name in (*_NODE_REFERENCES, "step_action", "last_action", "prompt_node"):
        out[name] = offset(name, nodes)
    for name, sizes in (("path_token", tokens), ("path_step", steps), ("step_previous", steps),
                        ("path_trajectory", rows), ("step_trajectory", rows)):
        out[name] = offset(name, sizes)
    lengths = torch.cat([f.first_token.diff() for f in forests])
    out["first_token"] = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    for column, names in (("agent", "agent_names"), ("policy", "policy_names"), ("state", "state_names")):
        merged = list(dict.fromkeys(n for f in forests for n in getattr(f, names)))
        out[names] = tuple(merged)
        for field_name in (column, *{"agent": ("step_agent",), "state": ("step_state",)}.get(column, ())):
            out[field_name] = torch.cat([_rename(getattr(f, field_name), getattr(f, names), merged) for f in forests])
    named = list(dict.fromkeys(n for f in forests for n in f.component_names))
    out["component_names"] = tuple(named)
    blocks = []
    for f in forests:
        block = torch.full((f.n_trajectories, len(named)), NAN, dtype=torch.float64)
        for k, name in enumerate(f.component_names):
            block[:, named.index(name)] = f.components[:, k]
        blocks.append(block)
    out["components"] = torch.cat(blocks)
    out["id"] = _unique([i for f in forests for i in f.id])
    starts = [sum(nodes[:i]) for i in range(len(nodes))]
    out["media"] = {n + start: m for f, start in zip(forests, starts, strict=True) for n, m in f.media.items()}
    out["extras"] = _concat_extras(forests, tokens)
    return Forest(**out)


def _rename(column: Tensor, names: Sequence[str], merged: list[str]) -> Tensor:
    table = torch.tensor([merged.index(n) for n in names] or [-1], dtype=torch.int64)
    return torch.where(column >= 0, table[column.clamp_min(0)], -1)


def _unique(ids: list[str]) -> list[str]:
    seen: dict[str, int] = {}
    out = []
    for name in ids:
        count = seen.get(name, 0)
        seen[name] = count + 1
        out.append(name if not count else f"{name}+{count}")
    return out


def _concat_extras(forests: Sequence[Forest], tokens: Sequence[int]) -> dict[str, Tensor]:
    from gxpo.records import widen

    out: dict[str, Tensor] = {}
    at = 0
    for f, size in zip(forests, tokens, strict=True):
        for name, value in f.extras.items():
            out[name] = widen(out.get(name), value, sum(tokens))
            out[name][(slice(at, at + size), *(slice(0, n) for n in value.shape[1:]))] = value
        at += size
    return out
