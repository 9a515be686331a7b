"""Rewards of teams by the facts of their turns: shaped outcomes of attempts, utilities of single turns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from gxpo.environments.rewards.base import RewardPart
from gxpo.environments.rewards.shape import COLUMNS, Shape
from gxpo.forest import grouped
from gxpo.forest.forest import Forest
from gxpo.parts.functions import Formula
from gxpo.parts.registry import part


class Turn(NamedTuple):
    """Facts of a turn: who acted, its step reward (nan none), tokens, mean -log-prob (nats) under its sampler, caller.

    caller  number of the turn that called this one, from 0; -1 none
    """

    agent: str
    reward: float = math.nan
    tokens: int = 1
    nll: float = math.nan
    caller: int = -1


Turns = Sequence[Sequence[Turn]]  # [R], each in time


def turns_of(forest: Forest) -> list[list[Turn]]:
    """Facts of each trajectory's turns, in time."""
    step = forest.path_step
    tokens_S = torch.bincount(step, minlength=forest.n_steps)
    total_S = torch.zeros(forest.n_steps, dtype=torch.float64).index_add_(0, step, -forest.path_behaviour_logprob)
    step_of_node = torch.full((forest.n_nodes + 1,), -1).index_put((forest.step_action,), torch.arange(forest.n_steps))
    # a missing caller points at the last row, which is no step
    caller_S = step_of_node[forest.caller[forest.step_action]]
    turns_R: list[list[Turn]] = [[] for _ in range(forest.n_trajectories)]
    starts = grouped.begins_of(forest.step_trajectory, forest.n_trajectories).tolist()
    columns = (forest.step_trajectory, forest.step_agent, forest.step_reward, tokens_S, total_S, caller_S)
    for r, agent, reward, tokens, total, caller in zip(*(c.tolist() for c in columns), strict=True):
        number = caller - starts[r] if caller >= 0 else -1
        turns_R[r].append(Turn(forest.agent_names[agent], reward, tokens, total / max(tokens, 1), number))
    return turns_R


# ---------------------------------------------------------------- parts
@part("team_shape", stage="reward")
@dataclass(frozen=True)
class TeamShape(Shape):
    """Shaped outcome of a team's attempts (`reward.shape`): as `shape`, by functions that also read `turns`.

    function  in `rewards.team_outcomes` by name, `file.py:function` or a function; see `shape`. In addition to its
              columns there is turns: the facts of each attempt's turns (`Turn`), [R] lists
    """

    function: Any = "family_format"
    options: Mapping[str, Any] = field(default_factory=dict)

    functions: ClassVar[Mapping[str, tuple[str, bool]]] = {
        "function": ("gxpo.environments.rewards.team_outcomes", False)
    }
    columns: ClassVar[Mapping[str, Any]] = {**COLUMNS, "turns": lambda forest, _: turns_of(forest)}


@part("turn_utility", stage="reward")
@dataclass(frozen=True)
class TurnUtility(Formula, RewardPart):
    """Utility of each turn of a team (`reward.step`), in the place of its role's own reward.

    function  in `rewards.turn_utilities` by name, `file.py:function` or a function: of the outcome and the facts of an
              attempt's turns (`Turn`), that gives a number for each; its keyword-only parameters are options

    `credit.value: return` with `credit.discount: 0` compares turns by it. Turns of unscored attempts have none (nan).
    """

    function: Any = "public_goods"
    options: Mapping[str, Any] = field(default_factory=dict)

    functions: ClassVar[Mapping[str, tuple[str, bool]]] = {
        "function": ("gxpo.environments.rewards.turn_utilities", False)
    }

    @torch.no_grad()
    def __call__(self, forest: Forest) -> Tensor:
        utilities: list[float] = []
        for outcome, turns in zip(forest.outcome.tolist(), turns_of(forest), strict=True):
            values = self.apply(self.function, [outcome, turns])
            utilities += values if math.isfinite(outcome) else [math.nan] * len(turns)
        # what is returned is added to the role's own reward, which it replaces
        return torch.tensor(utilities, dtype=torch.float64) - forest.step_reward.nan_to_num(0.0)
