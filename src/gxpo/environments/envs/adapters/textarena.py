"""TextArena games (Guertler et al. 2025, arXiv:2504.11442) for one player, or two against a simple opponent."""

from __future__ import annotations

import contextlib
import copy
import enum
import io
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gxpo.base.errors import did_you_mean, need
from gxpo.environments.envs.actions import action_text
from gxpo.environments.envs.adapters import AdapterError, digest
from gxpo.parts.protocols import TimeStep

LISTED = re.compile(r"(?:available|valid|legal)\s+(?:moves|actions)\s*:(.*)", re.IGNORECASE | re.DOTALL)
MOVE = re.compile(r"\[[^\[\]]+\]")
OPPONENT_MOVES = 1000  # in a row: a game that never gives the turn back is an error


class _OwnRandomness:
    """Global generators of `random` and numpy, swapped for an episode's own while its game runs."""

    def __init__(self, seed: int):
        self._states = random.Random(seed).getstate(), np.random.RandomState(seed % 2**32).get_state()

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        callers_states = random.getstate(), np.random.get_state()
        random.setstate(self._states[0])
        np.random.set_state(self._states[1])
        try:
            yield
        finally:
            self._states = random.getstate(), np.random.get_state()
            random.setstate(callers_states[0])
            np.random.set_state(callers_states[1])


def listed_moves(text: str) -> tuple[str, ...]:
    """Moves in brackets that a game's message lists as available.

    >>> listed_moves("0 | X Available Moves: '[0]', '[2]'"), listed_moves("[0] is taken")
    (('[0]', '[2]'), ())
    """
    match = LISTED.search(text)
    return tuple(dict.fromkeys(MOVE.findall(match.group(1)))) if match else ()


def _plain(value: Any) -> Any:
    """Convert `value` to something with the same `repr` in every process; TypeError for an unknown kind of object."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, enum.Enum):
        return str(value)
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if isinstance(value, Mapping):
        return sorted(((repr(_plain(k)), _plain(v)) for k, v in value.items()), key=lambda item: item[0])
    if isinstance(value, (set, frozenset)):
        return sorted(repr(_plain(v)) for v in value)
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    raise TypeError(f"{type(value).__name__} has no plain form")


@dataclass
class TextArena:
    """A TextArena game. Deterministic given seed and actions, also between processes.

    id         of the game, such as "TicTacToe" or "Minesweeper-v0-small"; without "-v" it is version 0
    opponent   player of the other seat in a game for two. "random": any of the moves that the game lists as available
               to it, or any valid one of `moves` where it lists none, each as likely as another. Any other text is
               what it always says, such as "[rock]". Neither is a good player: a success rate against them is no
               measure of skill
    moves      what a random opponent may say in games that list no moves
    seat       0 or 1: which player the policy is
    max_turns  actions an episode may have; the game may have a limit of its own
    options    of the game's constructor, such as {"rows": 5}

    reward     0 until the game is over, then the game's: 1, -1, or in some games for one a share of the solution
    success    for one player a reward of 1; for two, more than 0
    state      what the game keeps, without its count of turns and its random generator; None where that can't be read
    `action_error` is "illegal" where the game calls a move invalid, for any reason; after as many in a row
    as the game allows (mostly one), it ends.
    """

    id: str
    opponent: str = "random"
    moves: tuple[str, ...] = ()
    seat: int = 0
    max_turns: int = 50
    options: dict[str, Any] = field(default_factory=dict)

    instructions = (
        "You play a game. Each turn, reply with one move between <action> and </action>, in the form that the rules "
        "ask for, for example <action>[4]</action>."
    )

    def __post_init__(self) -> None:
        self.moves = tuple(self.moves)
        if self.seat not in (0, 1):
            raise AdapterError(f"textarena:{self.id}: seat is 0 or 1, not {self.seat!r}")
        if self.max_turns < 1:
            raise AdapterError(f"textarena:{self.id}: max_turns must be at least 1, not {self.max_turns}")
        with _quiet():
            self._library = need("textarena", "textarena")
            registry = need("textarena.envs.registration", "textarena").ENV_REGISTRY
        name = self.id if "-v" in self.id else f"{self.id}-v0"
        if name not in registry:
            raise AdapterError(f"textarena has no game {self.id!r}{did_you_mean(name, registry)}")
        wrappers = registry[name].default_wrappers or []
        self._brackets = any(wrapper.__name__ == "ActionFormattingWrapper" for wrapper in wrappers)
        self._name = f"{name}-raw" if f"{name}-raw" in registry else name
        self._players = _players(self)

    def make(self) -> Any:
        """Create the library's game without its wrappers, which would shorten or repeat its messages."""
        try:
            with _quiet():
                game = self._library.make(self._name, **self.options)
        except (Exception, SyntaxError) as error:  # a game of the library may not even be importable
            raise AdapterError(f"textarena:{self.id} can't be made ({_reason(error)})") from error
        # wrappers that the registry adds all the same
        while hasattr(game, "env"):
            game = game.env
        return game

    def reset(self, seed: int) -> TimeStep:
        # the opponent has a generator of its own: its moves do not depend on what the game draws
        self._own_randomness = _OwnRandomness(seed)
        self._rival = random.Random(f"opponent/{seed}")
        self._turns, self._moves_by_player = 0, {}
        with self._own_randomness(), _quiet():
            self._game = self.make()  # another one: some games keep something of the one before
            self._game.reset(num_players=self._players, seed=seed)
            return self._time_step(self._play_opponent())

    def step(self, action: str) -> TimeStep:
        self._turns += 1
        with self._own_randomness(), _quiet():
            move = action_text(action)
            if not move:
                return self._time_step(False, note="There is no move in this.", action_error="malformed")
            is_over, invalid = _play_move(
                self._game, f"[{move}]" if self._brackets and not {"[", "]"} & set(move) else move
            )
            is_over = is_over or self._play_opponent()
            return self._time_step(is_over, action_error="illegal" if invalid else None)

    def legal(self) -> tuple[str, ...]:
        """The moves that the game listed last; empty where it lists none."""
        return self._moves_by_player.get(self.seat, ()) or self.moves

    def _play_opponent(self) -> bool:
        """Let the opponent move until it is the policy's turn; True if the game is over."""
        for _ in range(OPPONENT_MOVES):
            player = self._game.state.current_player_id
            if self._game.state.done or player == self.seat or self._players == 1:
                return bool(self._game.state.done)
            _, messages = self._game.get_observation()
            self._note_moves(player, messages)
            over, invalid = _play_move(self._game, self._opponent_move(player))
            if over and invalid:
                raise AdapterError(f"textarena:{self.id}: the opponent lost by an invalid move; give it other `moves`")
        raise AdapterError(f"textarena:{self.id}: the opponent moved {OPPONENT_MOVES} times in a row")

    def _opponent_move(self, player: int) -> str:
        if self.opponent != "random":
            return self.opponent
        if self._moves_by_player.get(player):
            return self._rival.choice(self._moves_by_player[player])
        if not self.moves:
            raise AdapterError(
                f"textarena:{self.id} lists no moves for the opponent: give `moves` to draw from, or a fixed one"
            )
        # the first valid one in random order: each valid move is equally likely
        moves = self._rival.sample(self.moves, len(self.moves))
        return next(filter(self._is_valid, moves), moves[0])

    def _is_valid(self, move: str) -> bool:
        """Try a move on a copy of the game."""
        with _OwnRandomness(0)():
            return not _play_move(copy.deepcopy(self._game), move)[1]

    def _note_moves(self, player: int, messages: list[Any]) -> None:
        for _, text, _ in messages:
            if isinstance(text, str):  # some games add a message with its parts in the wrong order
                self._moves_by_player[player] = listed_moves(text) or self._moves_by_player.get(player, ())

    def _time_step(self, over: bool, note: str = "", action_error: str | None = None) -> TimeStep:
        state = self._game.state
        if state.current_player_id == self.seat or not over:
            _, messages = self._game.get_observation()
        else:
            messages = state.observations.get(self.seat, [])
        self._note_moves(self.seat, messages)
        # the policy knows its own move: its echo is left out
        echo = self._library.ObservationType.PLAYER_ACTION
        lines = [note] if note else []
        for sender, text, kind in messages:
            if isinstance(text, str) and (sender, kind) != (self.seat, echo):
                speaker = "" if sender == self._library.GAME_ID else f"{state.role_mapping.get(sender, sender)}: "
                lines.append(speaker + text.strip())
        outcome: dict[str, Any] = {"reward": 0.0 if self._turns else None, "action_error": action_error}
        if over:
            rewards, about = self._game.close()
            reward = None if rewards is None else rewards.get(self.seat)
            if reward is not None and not isinstance(reward, (int, float)):
                raise AdapterError(f"textarena:{self.id} pays {reward!r}, which is no number: a fault of this game")
            lines.append(f"The game is over. {about[self.seat].get('reason') or ''}".strip())
            outcome |= {"reward": None if reward is None else float(reward), "done": True}
            outcome["success"] = None if reward is None else bool(reward >= 1 if self._players == 1 else reward > 0)
        elif self._turns >= self.max_turns:
            outcome |= {"done": True, "truncated": True, "success": False}
        return TimeStep("\n\n".join(filter(None, lines)), self._state(), **outcome)

    def _state(self) -> str | None:
        state = self._game.state
        attributes = {k: v for k, v in vars(self._game).items() if k not in ("state", "env_id", "entry_point")}
        try:
            return digest(
                _plain([state.game_state, attributes, state.current_player_id, getattr(state, "error_count", 0)])
            )
        except TypeError:
            return None


def _play_move(game: Any, move: str) -> tuple[bool, bool]:
    """Make a move of the player whose turn it is; return (game is over, move was invalid)."""
    state = game.state
    player, errors = state.current_player_id, getattr(state, "error_count", 0)
    over, _ = game.step(action=move)
    invalid = getattr(state, "error_count", 0) > errors or bool(state.game_info[player].get("invalid_move"))
    return bool(over), invalid


def _reason(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


_PLAYERS: dict[str, int] = {}  # by the library's name of the game; found out by trying


def _players(world: TextArena) -> int:
    """Number of players of a game, 1 or 2; AdapterError if it starts with neither."""
    # the registry does not tell, so both numbers are tried, once a process
    refusal: BaseException | None = None
    for players in () if world._name in _PLAYERS else (1, 2):
        game = world.make()
        try:
            with _OwnRandomness(0)(), _quiet():
                game.reset(num_players=players, seed=0)
        except Exception as error:  # games refuse a number of players in many ways
            refusal = error
            continue
        if players == 2 or type(game.state).__name__ == "SinglePlayerState":
            _PLAYERS[world._name] = players
            break
    if world._name not in _PLAYERS:
        detail = f" ({_reason(refusal)})" if refusal else ""
        raise AdapterError(f"textarena:{world.id} starts with neither one nor two players{detail}")
    return _PLAYERS[world._name]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Discard what games print, such as that a corpus was not found in the network."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield
