"""Zero-sum games of two players who move in turns: what they are paid, draws and invalid moves told apart."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from gxpo.base.errors import ConfigError
from gxpo.environments.envs.actions import action_text
from gxpo.parts.protocols import TimeStep

RESULTS = {1: "win", 0: "draw", -1: "loss"}


@dataclass(kw_only=True)
class Duel:
    """Base class of the games. A game has `content`, `starting_position`, `play`, `observation`, `legal` and `worth`.

    style    "chat": the position in words; "bare": in a few characters and ">"
    draw     reward of a draw, for both
    invalid  an invalid move ends the game and costs who made it 1; "loses": the other wins it and is paid 1; "ends":
             the other is paid 0

    Who wins is paid 1 and the other -1. The last `info` has "result": win, loss, draw, "invalid" of who made an invalid
    move, and "void" of the other where the game only ends. The expert can't be beaten; of equally good moves it draws
    one.
    """

    style: str = "chat"
    draw: float = 0.0
    invalid: str = "ends"
    max_turns: int = 9

    agents: ClassVar[tuple[str, str]]
    rules: ClassVar[str]
    _player: int = field(init=False, default=0)
    _is_over: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        name = type(self).__name__.lower()
        if self.style not in ("chat", "bare"):
            raise ConfigError(f"{name}: style is 'chat' or 'bare', not {self.style!r}")
        if self.invalid not in ("loses", "ends"):
            raise ConfigError(f"{name}: invalid is 'loses' or 'ends', not {self.invalid!r}")

    @property
    def instructions(self) -> str:
        return "" if self.style == "bare" else self.rules

    # ------------------------------------------------------------ of each game
    def starting_position(self, seed: int) -> str:
        """Begin a game; return its position."""
        raise NotImplementedError

    def play(self, move: str, agent: str) -> tuple[str, int | None]:
        """Carry out a move; return the position, and 1 or 0 where the mover has won or the game is drawn, else None."""
        raise NotImplementedError

    def observation(self, agent: str) -> str:
        """The position as an agent reads it."""
        raise NotImplementedError

    def legal(self, agent: str) -> list[str]:
        raise NotImplementedError

    def worth(self, move: str, agent: str) -> int:
        """Result of a move if both play as well as can be: 1, 0 or -1."""
        raise NotImplementedError

    # ------------------------------------------------------------ of all games
    def reset(self, seed: int) -> dict[str, TimeStep]:
        self._player, self._is_over, self._chance = 0, False, random.Random(f"expert/{seed}")
        self._position = self.starting_position(seed)
        first, second = self.agents
        return {first: TimeStep(self.observation(first), self._position), second: TimeStep("", self._position)}

    def acting(self) -> Sequence[str]:
        return () if self._is_over else (self.agents[self._player],)

    def step(self, actions: Mapping[str, str]) -> dict[str, TimeStep]:
        player, opponent = self.agents[self._player], self.agents[1 - self._player]
        move = action_text(actions[player])
        if move not in self.legal(player):
            kind = "illegal" if move.isdecimal() else "malformed"
            payment = 1.0 if self.invalid == "loses" else 0.0
            return self._end({player: (-1.0, "invalid", kind), opponent: (payment, "win" if payment else "void", None)})
        self._position, result = self.play(move, player)
        if result is not None:
            payment_by_result = {1: 1.0, 0: self.draw, -1: -1.0}
            return self._end(
                {a: (payment_by_result[x], RESULTS[x], None) for a, x in ((player, result), (opponent, -result))}
            )
        self._player = 1 - self._player
        return {
            player: TimeStep("", self._position, reward=0.0),
            opponent: TimeStep(self.observation(opponent), self._position),
        }

    def expert(self, agent: str) -> str:
        """One of the best moves."""
        worth = {move: self.worth(move, agent) for move in self.legal(agent)}
        return self._chance.choice([move for move, x in worth.items() if x == max(worth.values())])

    def _end(self, results: Mapping[str, tuple[float, str, str | None]]) -> dict[str, TimeStep]:
        self._is_over = True
        return {
            agent: TimeStep(
                f"{self.observation(agent)}\nThe game is over: {result}.", self._position, reward=reward, done=True,
                success=result == "win", action_error=error, info={"result": result},
            )
            for agent, (reward, result, error) in results.items()
        }  # fmt: skip
