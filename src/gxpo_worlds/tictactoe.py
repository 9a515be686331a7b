"""Noughts and crosses for two players, in turns: zero-sum, with draws and invalid moves told apart."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar

from gxpo.base.errors import ConfigError
from gxpo_worlds.duel import Duel

EMPTY = "."
LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))


def winner(board: str) -> str | None:
    """Player with a line of three; None without one.

    >>> winner("XXX.OO..."), winner(".........")
    ('X', None)
    """
    return next((board[a] for a, b, c in LINES if board[a] != EMPTY and board[a] == board[b] == board[c]), None)


def mark_cell(board: str, cell: int, player: str) -> str:
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
    opponent = "O" if player == "X" else "X"
    return max((-value(mark_cell(board, cell, player), opponent) for cell in cells), default=0)


@dataclass(kw_only=True)
class TicTacToe(Duel):
    """Noughts and crosses, agents X and O (see `Duel`). "bare": nine characters, the player's own mark and ">".

    opening  moves that are made at random, by the seed, before X begins (an even number)
    """

    opening: int = 2
    board: str = field(init=False, default=EMPTY * 9)

    agents: ClassVar[tuple[str, str]] = ("X", "O")
    rules: ClassVar[str] = (
        "You play noughts and crosses. Three of your marks in a row, column or diagonal win. The cells are "
        "numbered 1 to 9, row by row. Reply with the number of an empty cell between <action> and </action>."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.opening not in (0, 2, 4):
            raise ConfigError(f"tictactoe: opening is 0, 2 or 4, not {self.opening!r}")

    def content(self, seed: int) -> str:
        """Board on which X begins."""
        chance, board = random.Random(f"tictactoe/{seed}"), EMPTY * 9
        for turn in range(self.opening):
            safe = [c for c in _empty(board) if winner(mark_cell(board, c, self.agents[turn % 2])) is None]
            board = mark_cell(board, chance.choice(safe), self.agents[turn % 2])
        return board

    def starting_position(self, seed: int) -> str:
        self.board = self.content(seed)
        return self.board

    def play(self, move: str, agent: str) -> tuple[str, int | None]:
        self.board = mark_cell(self.board, int(move) - 1, agent)
        return self.board, 1 if winner(self.board) else None if _empty(self.board) else 0

    def legal(self, agent: str) -> list[str]:
        return [str(cell + 1) for cell in _empty(self.board)]

    def worth(self, move: str, agent: str) -> int:
        opponent = self.agents[1 - self.agents.index(agent)]
        return -value(mark_cell(self.board, int(move) - 1, agent), opponent)

    def observation(self, agent: str) -> str:
        if self.style == "bare":
            return f"{self.board}{agent}>"
        marks = [mark if mark != EMPTY else str(cell + 1) for cell, mark in enumerate(self.board)]
        rows = "\n".join(" ".join(marks[i : i + 3]) for i in (0, 3, 6))
        return f"{rows}\nYou are {agent}."


def _empty(board: str) -> list[int]:
    return [cell for cell, mark in enumerate(board) if mark == EMPTY]
