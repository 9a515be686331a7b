"""Noughts and crosses for two players, in turns: zero-sum, with draws and invalid moves told apart."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar

from gxpo.base.errors import ConfigError
from gxpo.environments.envs.actions import action_text
from gxpo.parts.protocols import TimeStep

EMPTY = "."
LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))
RESULTS = {1: "win", 0: "draw", -1: "loss"}


def winner(board: str) -> str | None:
    """Player with a line of three; None without one.

    >>> winner("XXX.OO..."), winner(".........")
    ('X', None)
    """
    return next((board[a] for a, b, c in LINES if board[a] != EMPTY and board[a] == board[b] == board[c]), None)


def moved(board: str, cell: int, player: str) -> str:
    """Board after a player has marked a cell."""
    return board[:cell] + player + board[cell + 1 :]


@lru_cache(maxsize=6000)
def value(board: str, player: str) -> int:
    """Result for the player to move if both play as well as can be: 1, 0 or -1.

    >>> value("XX.OO....", "X"), value(".........", "X")
    (1, 0)
    """
    if winner(board) is not None:
        return -1
    cells = [cell for cell, mark in enumerate(board) if mark == EMPTY]
    other = "O" if player == "X" else "X"
    return max((-value(moved(board, cell, player), other) for cell in cells), default=0)


@dataclass(kw_only=True)
class TicTacToe:
    """Noughts and crosses, agents X and O. Who wins is paid 1 and the other -1, a draw pays `draw`.

    style    "chat": the board in words; "bare": nine characters, the player's own mark and ">"
    opening  moves that are made at random, by the seed, before X begins (an even number)
    draw     reward of a draw, for both
    invalid  an invalid move ends the game and costs who made it 1; "loses": the other wins it and is paid 1; "ends":
             the other is paid 0

    The last `info` has "result": win, loss, draw, "invalid" of who made an invalid move, and "void" of the other where
    the game only ends. The expert can't be beaten; of equally good moves it draws one.
    """

    style: str = "chat"
    opening: int = 2
    draw: float = 0.0
    invalid: str = "ends"
    max_turns: int = 9
    board: str = field(init=False, default=EMPTY * 9)

    agents: ClassVar[tuple[str, str]] = ("X", "O")

    def __post_init__(self) -> None:
        if self.style not in ("chat", "bare"):
            raise ConfigError(f"tictactoe: style is 'chat' or 'bare', not {self.style!r}")
        if self.invalid not in ("loses", "ends"):
            raise ConfigError(f"tictactoe: invalid is 'loses' or 'ends', not {self.invalid!r}")
        if self.opening not in (0, 2, 4):
            raise ConfigError(f"tictactoe: opening is 0, 2 or 4, not {self.opening!r}")

    @property
    def instructions(self) -> str:
        return "" if self.style == "bare" else (
            "You play noughts and crosses. Three of your marks in a row, column or diagonal win. The cells are "
            "numbered 1 to 9, row by row. Reply with the number of an empty cell between <action> and </action>."
        )  # fmt: skip

    def content(self, seed: int) -> str:
        """Board on which X begins."""
        chance, board = random.Random(f"tictactoe/{seed}"), EMPTY * 9
        for turn in range(self.opening):
            safe = [c for c in _empty(board) if winner(moved(board, c, self.agents[turn % 2])) is None]
            board = moved(board, chance.choice(safe), self.agents[turn % 2])
        return board

    def reset(self, seed: int) -> dict[str, TimeStep]:
        self.board, self._player, self._is_over = self.content(seed), 0, False
        self._chance = random.Random(f"expert/{seed}")
        return {"X": self._shown("X"), "O": TimeStep("", self.board)}

    def acting(self) -> Sequence[str]:
        return () if self._is_over else (self.agents[self._player],)

    def step(self, actions: Mapping[str, str]) -> dict[str, TimeStep]:
        player, other = self.agents[self._player], self.agents[1 - self._player]
        cell = action_text(actions[player])
        if cell not in self.legal(player):
            kind = "illegal" if cell.isdecimal() else "malformed"
            paid = 1.0 if self.invalid == "loses" else 0.0
            return self._end({player: (-1.0, "invalid", kind), other: (paid, "win" if paid else "void", None)})
        self.board = moved(self.board, int(cell) - 1, player)
        if winner(self.board) is not None:
            return self._end({player: (1.0, "win", None), other: (-1.0, "loss", None)})
        if not _empty(self.board):
            return self._end({agent: (self.draw, "draw", None) for agent in self.agents})
        self._player = 1 - self._player
        return {player: TimeStep("", self.board, reward=0.0), other: self._shown(other)}

    def legal(self, agent: str) -> list[str]:
        return [str(cell + 1) for cell in _empty(self.board)]

    def expert(self, agent: str) -> str:
        """One of the best moves."""
        other = self.agents[1 - self.agents.index(agent)]
        worth = {cell: -value(moved(self.board, cell, agent), other) for cell in _empty(self.board)}
        return str(self._chance.choice([cell for cell, x in worth.items() if x == max(worth.values())]) + 1)

    def _end(self, results: Mapping[str, tuple[float, str, str | None]]) -> dict[str, TimeStep]:
        self._is_over = True
        return {
            agent: TimeStep(
                f"{self._picture(agent)}\nThe game is over: {result}.", self.board, reward=reward, done=True,
                success=result == "win", action_error=error, info={"result": result},
            )
            for agent, (reward, result, error) in results.items()
        }  # fmt: skip

    def _shown(self, agent: str) -> TimeStep:
        return TimeStep(self._picture(agent), self.board)

    def _picture(self, agent: str) -> str:
        if self.style == "bare":
            return f"{self.board}{agent}>"
        marks = [mark if mark != EMPTY else str(cell + 1) for cell, mark in enumerate(self.board)]
        rows = "\n".join(" ".join(marks[i : i + 3]) for i in (0, 3, 6))
        return f"{rows}\nYou are {agent}."


def _empty(board: str) -> list[int]:
    return [cell for cell, mark in enumerate(board) if mark == EMPTY]
