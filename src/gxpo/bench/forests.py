"""Synthetic forests of any size with all columns that a part may read, made without a loop over turns."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gxpo.base.errors import GxpoError
from gxpo.forest.forest import COLUMNS, Forest
from gxpo.forest.record_format.schema import SCHEMA

TURNS, GROUP, TREES, STATES = 10, 10, 2, 10  # of a trajectory; trajectories, trees and anchor states of a group
PROMPT, OBSERVED, WRITTEN = 8, 2, 4  # tokens of a prompt, an observation, an action
PER_GROUP = TURNS * GROUP


def made_up(turns: int, *, forks: bool = False, seed: int = 0) -> Forest:
    """Synthetic forest of `turns` turns: groups of 10 trajectories of 10 turns, 10 anchor states in each group.

    forks  the five trajectories of a tree share their first five turns; without, groups share their prompt alone

    Outcomes, verdicts and named rewards are random, half of the turns have a step reward, every action token is a
    segment, every token has a label and a value of the state before it. GxpoError where `turns` is no multiple of 100,
    which is one group.
    """
    if turns % PER_GROUP:
        raise GxpoError(f"{turns} turns are no whole groups: take a multiple of {PER_GROUP}")
    groups, draw = turns // PER_GROUP, torch.Generator().manual_seed(seed)

    def uniform(n: int) -> Tensor:
        return torch.rand(n, generator=draw, dtype=torch.float64)

    columns = tiled(Forest.from_records(_group(forks)), groups)
    kind, step_action = columns["kind"], columns["step_action"]
    state = torch.randint(STATES, kind.shape, generator=draw) + STATES * _copy_of(kind, groups)
    paid = uniform(len(kind))[step_action]
    tokens = len(columns["token"])
    success = (uniform(groups * GROUP) < 0.5).to(torch.float64)
    return Forest(
        **columns
        | {
            "state": torch.where(columns["state"] >= 0, state, -1),
            "step_state": state[step_action],
            "state_names": tuple(f"s{i}" for i in range(STATES * groups)),
            "token": torch.randint(1, 1000, columns["token"].shape, generator=draw),
            "behaviour_logprob": -uniform(len(columns["token"])),
            "step_reward": torch.where(paid < 0.5, paid, torch.nan),
            "outcome": uniform(groups * GROUP).round(decimals=1),
            "success": success,
            "components": torch.stack([success, (uniform(groups * GROUP) < 0.9).to(torch.float64)], 1),
            "component_names": ("correct", "format"),
            "extras": {"label": torch.arange(tokens) % 5, "state_value": uniform(tokens)},
        }
    )


def tiled(forest: Forest, times: int) -> dict[str, Any]:
    """Fields of the forest repeated `times` times, every copy in its own groups."""
    out: dict[str, Any] = {}
    for name, (_, into) in COLUMNS.items():
        column = getattr(forest, name)
        if isinstance(column, list):
            named = name in ("id", "task", "group")
            out[name] = [f"{i}/{x}" for i in range(times) for x in column] if named else column * times
            continue
        copies = column.repeat(times, *(1 for _ in column.shape[1:]))
        if into is not None:
            moved = copies + forest._size(into) * _copy_of(copies, times)
            copies = torch.where(copies >= 0, moved, -1)
        out[name] = copies
    sizes = forest.first_token.diff().repeat(times)
    out["first_token"] = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
    return out | {name: getattr(forest, name) for name in ("component_names", "agent_names", "policy_names")}


def _copy_of(column: Tensor, times: int) -> Tensor:
    return torch.repeat_interleave(torch.arange(times), len(column) // max(times, 1))


def _group(forks: bool) -> list[dict[str, Any]]:
    """The records of one group."""
    return [_record(i, forks and i % (GROUP // TREES) > 0) for i in range(GROUP)]


def _record(i: int, forked: bool) -> dict[str, Any]:
    tree = i // (GROUP // TREES)
    kept = TURNS // 2 if forked else 0
    action = {"action": [0] * WRITTEN, "logprob": [0.0] * WRITTEN, "segments": list(range(WRITTEN)), "state": ""}
    start: dict[str, Any] = {"prompt": [0] * PROMPT}
    if forked:
        start = {"fork": {"of": f"t{tree * (GROUP // TREES)}", "turn": kept - 1, "token": None}}
    return {
        "schema": SCHEMA,
        "group": "g",
        "id": f"t{i}",
        "turns": [{"observation": [i] * OBSERVED, **action} for _ in range(TURNS - kept)],
        "reward": 0.0,
        "rewards": {"correct": 0.0, "format": 0.0},
        "info": {"tree": tree},
        **start,
    }
