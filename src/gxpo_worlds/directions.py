"""Directions: a walker asks its way of guides that it can't tell apart, one of whom wants it to pass a billboard."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from gxpo.base.errors import ConfigError
from gxpo.environments.envs.actions import find_action
from gxpo.parts.protocols import TimeStep

WALKER = "walker"
STEPS = {"north": (0, 1), "south": (0, -1), "east": (1, 0), "west": (-1, 0)}
Cell = tuple[int, int]


@dataclass(kw_only=True)
class Directions:
    """A walker on a grid of streets, with two guides who see the map; the seed decides which of them lies.

    size   streets each way
    steps  that the walker may take

    Each step both guides say a direction, then the walker goes one. It is paid 1 for its home; the honest guide the
    same; the other 1 if the walker passes the billboard, wherever it ends. Guides are called guide_a and guide_b, and
    know who they are; the walker doesn't. Success is one's own payment. The experts: the honest guide says the shortest
    way, the liar that to the billboard; the walker follows the guide whose words have brought it closer to home, which
    its distance, that it is told, shows.
    """

    size: int = 4
    steps: int = 6
    max_turns: int = 20
    _place: Cell = field(init=False, default=(0, 0))

    def __post_init__(self) -> None:
        if self.size < 3 or self.steps < 1:
            raise ConfigError("directions: size is 3 or more and steps 1 or more")

    @property
    def instructions(self) -> str:
        return "Directions are north, south, east and west. Reply with one of them."

    def content(self, seed: int) -> str:
        chance = random.Random(f"directions/{seed}")
        cells = [(x, y) for x in range(self.size) for y in range(self.size)]
        start, home, board = chance.sample(cells, 3)
        while not 0 < _distance(start, home) <= self.steps:
            start, home, board = chance.sample(cells, 3)
        return f"{start[0]},{start[1]} {home[0]},{home[1]} {board[0]},{board[1]} {chance.choice('ab')}"

    def reset(self, seed: int) -> dict[str, TimeStep]:
        start, home, board, liar = self.content(seed).split()
        self._place, self._home, self._board = (_cell(text) for text in (start, home, board))
        self._liar, self._advice, self._passed, self._turn = f"guide_{liar}", {}, False, 0
        self._trust = {"guide_a": 0, "guide_b": 0}
        news = {guide: TimeStep(self._map(guide), self._state()) for guide in self._trust}
        return {**news, WALKER: TimeStep("You want to go home.", self._state())}

    def acting(self) -> list[str]:
        if self._place == self._home or self._turn >= self.steps:
            return []
        return [WALKER] if self._advice else list(self._trust)

    def step(self, actions: Mapping[str, str]) -> dict[str, TimeStep]:
        words = {agent: find_action(text, list(STEPS)) for agent, text in actions.items()}
        errors = {agent: None if word else "malformed" for agent, word in words.items()}
        if WALKER not in actions:
            self._advice = {guide: word or "nothing" for guide, word in words.items()}
            report = f"guide_a says {self._advice['guide_a']}, guide_b says {self._advice['guide_b']}. "
            report += f"Home is {_distance(self._place, self._home)} streets away."
            news = {guide: TimeStep("", self._state(), 0.0, action_error=errors[guide]) for guide in words}
            return {**news, WALKER: TimeStep(report, self._state())}
        before, word = _distance(self._place, self._home), words[WALKER]
        self._place = self._target(word)
        for guide, direction in self._advice.items():
            self._trust[guide] += (direction == word) * (before - _distance(self._place, self._home))
        self._passed |= self._place == self._board
        self._turn, self._advice = self._turn + 1, {}
        is_over, error = not self.acting(), errors[WALKER]
        if not is_over:
            news = {guide: TimeStep(self._map(guide), self._state()) for guide in self._trust}
            return {**news, WALKER: TimeStep("", self._state(), 0.0, action_error=error)}
        reward_by_agent = {agent: float(self._place == self._home) for agent in (*self._trust, WALKER)}
        reward_by_agent[self._liar] = float(self._passed)
        return {
            agent: TimeStep(
                f"The walk is over: {'at home' if self._place == self._home else 'lost'}.", self._state(), reward=x,
                done=True, success=x > 0, action_error=error if agent == WALKER else None,
            )
            for agent, x in reward_by_agent.items()
        }  # fmt: skip

    def legal(self, agent: str) -> list[str]:
        return list(STEPS)

    def expert(self, agent: str) -> str:
        if agent != WALKER:
            goal = self._board if agent == self._liar and not self._passed else self._home
            return min(STEPS, key=lambda word: _distance(self._target(word), goal))
        trusted = max(self._trust, key=self._trust.__getitem__)
        return self._advice[trusted] if self._advice[trusted] in STEPS else "north"

    def _target(self, word: str | None) -> Cell:
        step = STEPS.get(word or "", (0, 0))
        target = (self._place[0] + step[0], self._place[1] + step[1])
        return target if all(0 <= x < self.size for x in target) else self._place

    def _map(self, guide: str) -> str:
        wish = "You want the walker to pass the billboard" if guide == self._liar else "You want the walker to get home"
        way = "The walker is at {}, its home at {}, the billboard at {} (east, north).".format(
            *(f"{x} {y}" for x, y in (self._place, self._home, self._board))
        )
        return f"{wish}. {way}"

    def _state(self) -> str:
        return f"{self._turn} {self._place} {sorted(self._advice.items())} {self._passed} {self._liar}"


def _distance(a: Cell, b: Cell) -> int:
    return abs(a[0] - b[0]) + abs(a[1] - b[1])


def _cell(text: str) -> Cell:
    x, y = map(int, text.split(","))
    return x, y
