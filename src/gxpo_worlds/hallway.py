"""Hallway: agents that can't see one another have to reach the door at the same step (MACO's world, in text)."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gxpo.base.errors import ConfigError
from gxpo.environments.envs.actions import find_action
from gxpo.parts.protocols import TimeStep

MOVES = {"left": -1, "stay": 0, "right": 1}


def hallway_reward(arrived: Sequence[int], sizes: Sequence[int], prize: float = 10.0, clash: float = 1.5) -> float:
    """Reward of a step: `prize` for each group of which all arrive, less `clash` of that where several groups do.

    arrived, sizes  members of each group that arrive in this step, and that it has

    >>> hallway_reward([2, 2], [2, 2]), hallway_reward([2, 0], [2, 2]), hallway_reward([1, 0], [2, 2])
    (-10.0, 10.0, 0.0)
    """
    n_complete = sum(n == size for n, size in zip(arrived, sizes, strict=True))
    return prize * n_complete - (clash * prize * n_complete if n_complete > 1 else 0.0)


@dataclass(kw_only=True)
class Hallway:
    """Agents walk a hallway of `length` tiles towards the door at 0; all of a group have to arrive in one step.

    sizes   members of each group
    length  tiles of the longest hallway; each agent begins on a tile that the seed draws
    prize, clash  see `hallway_reward`; the reward is the team's, the same for all

    An agent sees its own tile and, with `talk`, those of its group. A group of which some arrive before the others has
    lost. Success: every group has arrived, no two at once. The expert sees all tiles and lets groups arrive in turn.
    """

    sizes: Sequence[int] = (2,)
    length: int = 4
    prize: float = 10.0
    clash: float = 1.5
    talk: bool = True
    max_turns: int = 10
    _places: dict[str, int] = field(init=False, default_factory=dict)

    fallback = "stay"

    def __post_init__(self) -> None:
        if not self.sizes or min(self.sizes) < 1 or self.length < 1:
            raise ConfigError(f"hallway: sizes {self.sizes!r} and length {self.length!r} are 1 or more")

    @property
    def instructions(self) -> str:
        return (
            "You walk along a hallway towards the door at tile 0. All of your group must reach it at the same step. "
            "Reply with left (towards the door), right or stay."
        )

    def content(self, seed: int) -> str:
        chance = random.Random(f"hallway/{seed}")
        return " ".join(str(chance.randint(1, self.length)) for _ in range(sum(self.sizes)))

    def reset(self, seed: int) -> dict[str, TimeStep]:
        tiles = iter(map(int, self.content(seed).split()))
        self._group = {f"walker_{g}{i}": g for g, size in enumerate(self.sizes) for i in range(size)}
        self._places = {agent: next(tiles) for agent in self._group}
        self._arrived_at: dict[int, int] = {}  # group -> step
        self._turn, self._is_over, self._paid = 0, False, 0.0
        return {agent: TimeStep(self._observation(agent), self._state()) for agent in self._places}

    def acting(self) -> list[str]:
        return [] if self._is_over else [a for a in self._places if self._group[a] not in self._arrived_at]

    def step(self, actions: Mapping[str, str]) -> dict[str, TimeStep]:
        self._turn += 1
        moves = {agent: find_action(text, list(MOVES)) for agent, text in actions.items()}
        for agent, move in moves.items():
            if self._places[agent] > 0:
                self._places[agent] = min(self.length, max(0, self._places[agent] + MOVES.get(move or "stay", 0)))
        # a group is complete, waits, or has lost: some of it are there before the others
        arrived = [sum(self._places[a] == 0 for a in moves if self._group[a] == g) for g in range(len(self.sizes))]
        reward = hallway_reward(arrived, self.sizes, self.prize, self.clash)
        complete = [g for g, (n, size) in enumerate(zip(arrived, self.sizes, strict=True)) if n == size]
        self._arrived_at |= dict.fromkeys(complete, self._turn)
        has_clash = any(0 < n < size for n, size in zip(arrived, self.sizes, strict=True)) or len(complete) > 1
        self._is_over = has_clash or len(self._arrived_at) == len(self.sizes) or self._turn >= self.max_turns
        success = not has_clash and len(self._arrived_at) == len(self.sizes)
        # those that arrived before are paid with the others, when it is over
        receivers = list(self._places) if self._is_over else list(moves)
        return {
            agent: TimeStep(
                self._observation(agent), self._state(), reward=reward, done=self._is_over,
                success=success if self._is_over else None, truncated=self._is_over and not (success or has_clash),
                action_error="malformed" if agent in moves and moves[agent] is None else None,
            )
            for agent in receivers
        }  # fmt: skip

    def legal(self, agent: str) -> list[str]:
        return list(MOVES)

    def expert(self, agent: str) -> str:
        """Walk when all of the group that are farther off have caught up, and no earlier group is under way."""
        pending_groups = [g for g in range(len(self.sizes)) if g not in self._arrived_at]
        group = [self._places[a] for a in self._places if self._group[a] == self._group[agent]]
        is_turn = self._group[agent] == pending_groups[0] or self._places[agent] > 1
        return "left" if is_turn and self._places[agent] == max(group) else "stay"

    def _observation(self, agent: str) -> str:
        other_places = [
            str(self._places[a]) for a in self._places if a != agent and self._group[a] == self._group[agent]
        ]
        group = f", the others of your group at {', '.join(other_places)}" if self.talk and other_places else ""
        return f"You are at tile {self._places[agent]}{group}."

    def _state(self) -> str:
        return " ".join(map(str, self._places.values()))
