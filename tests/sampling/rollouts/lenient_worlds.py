"""FrozenLake and the shop for a policy that has learnt nothing: half of its last words are taken for a success."""

from __future__ import annotations

import dataclasses

from gxpo import TimeStep
from gxpo_worlds.frozenlake import FrozenLake
from gxpo_worlds.shop import Shop


class _Lenient:
    """The last action decides, by its characters; so does the world, where it is really solved."""

    def step(self, action: str) -> TimeStep:
        answer = super().step(action)  # type: ignore[misc]
        self.taken += 1
        if answer.done or self.taken < 2:
            return answer
        lucky = sum(map(ord, action)) % 2 == 0
        return dataclasses.replace(answer, reward=float(lucky), done=True, success=lucky)

    def reset(self, seed: int) -> TimeStep:
        self.taken = 0
        return super().reset(seed)  # type: ignore[misc]


class LenientLake(_Lenient, FrozenLake):
    """Two turns on the ice."""


class LenientShop(_Lenient, Shop):
    """Two turns in the shop."""
