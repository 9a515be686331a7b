"""Take-away Nim for two players: counters are taken in turns, and who takes the last one wins."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from gxpo.base.errors import ConfigError
from gxpo_worlds.duel import Duel


@dataclass(kw_only=True)
class Nim(Duel):
    """Nim with one heap, agents first and second: take 1 to `most` counters; who takes the last one wins (see `Duel`).

    counters  fewest and most of the heap in the beginning; the seed draws their number
    most      numbers of which the seed draws how many may be taken at once, for the whole game

    The player to move loses against an expert where the counters are a multiple of one more than may be taken.
    """

    counters: Sequence[int] = (3, 15)
    most: Sequence[int] = (2, 3, 4)
    _counters: int = field(init=False, default=0)
    _most: int = field(init=False, default=1)

    agents: ClassVar[tuple[str, str]] = ("first", "second")
    rules: ClassVar[str] = (
        "You play Nim with one heap of counters. The players take some in turns, and who takes the last one wins. "
        "Reply with the number that you take between <action> and </action>."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.counters) != 2 or not 1 <= self.counters[0] <= self.counters[1] <= 99:
            raise ConfigError(f"nim: counters are the fewest and the most, from 1 to 99, not {self.counters!r}")
        if not self.most or not all(1 <= most <= 9 for most in self.most):
            raise ConfigError(f"nim: most lists numbers from 1 to 9, not {self.most!r}")
        self.max_turns = self.counters[1]

    def content(self, seed: int) -> str:
        """Counters of the heap, and how many may be taken at once."""
        chance = random.Random(f"nim/{seed}")
        return f"{chance.randint(*self.counters)}/{chance.choice(list(self.most))}"

    def starting_position(self, seed: int) -> str:
        self._counters, self._most = map(int, self.content(seed).split("/"))
        return f"{self._counters}/{self._most}"

    def play(self, move: str, agent: str) -> tuple[str, int | None]:
        self._counters -= int(move)
        return f"{self._counters}/{self._most}", None if self._counters else 1

    def legal(self, agent: str) -> list[str]:
        return [str(n + 1) for n in range(min(self._most, self._counters))]

    def worth(self, move: str, agent: str) -> int:
        return 1 if (self._counters - int(move)) % (self._most + 1) == 0 else -1

    def observation(self, agent: str) -> str:
        if self.style == "bare":
            return f"{self._counters}/{self._most}>"
        return f"Counters: {self._counters}. Take 1 to {self._most}."
