"""Rollout records from padded tensors, as in TRL and verl."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gxpo.forest.columns import NAN
from gxpo.forest.record_format.schema import SCHEMA


def padded_records(
    input_ids: Tensor,
    completion_mask: Tensor,
    rewards: Tensor,
    group: Sequence[Any] | Tensor,
    logprobs: Tensor | None = None,
    *,
    attention_mask: Tensor | None = None,
) -> list[dict[str, Any]]:
    """Rollout records from padded rows, as in TRL and verl; left or right padding gives the same.

    input_ids        [B, L] prompt and completion; completion_mask [B, C], C <= L: 1 on the policy's own tokens, for the
                     last C columns. A gap inside (tool output) is an observation and opens a new turn.
    attention_mask   [B, L]: 0 on padding. Without it, nothing before a row's last own token is taken for padding (so
                     left-padded prompts need it), and all after it is. Without own tokens a row is its first L - C.
    rewards [B] (nan = unscored), group [B] opaque ids; logprobs [B, C] or [B, L] of the sampler, aligned with the
    tokens (nan = unknown). Raises ValueError where shapes differ.
    """
    rows, width = input_ids.shape
    for name, x in (("completion_mask", completion_mask), ("logprobs", logprobs)):
        if x is not None and (x.dim() != 2 or x.shape[0] != rows or x.shape[1] > width):
            raise ValueError(f"{name} {tuple(x.shape)} does not fit input_ids {(rows, width)}")
    if attention_mask is not None and attention_mask.shape != input_ids.shape:
        raise ValueError(f"attention_mask {tuple(attention_mask.shape)} does not fit input_ids {(rows, width)}")
    names = [str(g.item() if isinstance(g, Tensor) else g) for g in group]
    if len(names) != rows or rewards.shape != (rows,):
        raise ValueError(f"group, rewards and success need one value for each of the {rows} rows")
    # masks and log-probs of completions are of the last columns
    is_action = torch.zeros(rows, width, dtype=torch.bool)
    is_action[:, width - completion_mask.shape[1] :] = completion_mask.bool()
    behaviour_logprob = torch.full((rows, width), NAN, dtype=torch.float64)
    if logprobs is not None:
        behaviour_logprob[:, width - logprobs.shape[1] :] = logprobs.to(torch.float64)
    # tokens that are no padding: by the mask, else all up to the row's last own token
    if attention_mask is None:
        column = torch.arange(width)
        end = torch.where(is_action, column + 1, 0).amax(1) if width else torch.zeros(rows)
        end = torch.where(is_action.any(1), end, width - completion_mask.shape[1])
        is_real = column[None, :] < end[:, None]
    else:
        is_real = attention_mask.bool() | is_action
    # nan is not JSON: an unknown log-prob, and an unscored reward, are null in a record
    records = []
    for b in range(rows):
        is_token = is_real[b]
        reward = float(rewards[b])
        record = {"schema": SCHEMA, "id": f"t{b}", "group": names[b], "reward": reward if reward == reward else None}
        values = [None if x != x else x for x in behaviour_logprob[b, is_token].tolist()]
        records.append(record | _turns(input_ids[b, is_token].tolist(), is_action[b, is_token].tolist(), values))
    return records


def _turns(tokens: list[int], is_action: list[bool], logprob: list[float | None]) -> dict[str, Any]:
    """Prompt, turns and final observation of one row without padding."""
    # runs alternate between the policy's own tokens and others; others before the first own run are the prompt
    edges = [i for i in range(len(is_action)) if not i or is_action[i] != is_action[i - 1]]
    runs = [slice(a, b) for a, b in zip(edges, [*edges[1:], len(is_action)], strict=True)]
    prompt = tokens[runs.pop(0)] if runs and not is_action[0] else []
    turns: list[dict[str, Any]] = []
    for action, before in zip(runs[::2], [None, *runs[1::2]], strict=False):
        turns.append({"action": tokens[action], "logprob": logprob[action]})
        if before is not None:
            turns[-1]["observation"] = tokens[before]
    after = tokens[runs[-1]] if len(runs) % 2 == 0 and runs else []
    return {"prompt": prompt, "turns": turns or [{"action": []}], "final_observation": after}
