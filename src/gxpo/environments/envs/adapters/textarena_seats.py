"""TextArena games for two, with an agent in each seat and an outcome for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gxpo.environments.envs.actions import action_text
from gxpo.environments.envs.adapters import AdapterError
from gxpo.environments.envs.adapters.textarena import TextArena, _OwnRandomness, _play_move, _quiet
from gxpo.parts.protocols import TimeStep

SEATS = ("first", "second")


@dataclass
class TextArenaSeats(TextArena):
    """A TextArena game for two agents, "first" and "second"; see `TextArena`, whose `seat` and `opponent` are unused.

    Both are told the end, and are paid what the game pays them; `info` has the "result": win, loss, draw, or invalid of
    who ended it by an invalid move, and void of the other where it is not paid for that.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self._players != 2:
            raise AdapterError(f"textarena-seats:{self.id} is a game for one: set task=textarena:{self.id}")

    def reset(self, seed: int) -> dict[str, TimeStep]:  # type: ignore[override]  # a TimeStep for each agent
        self._own_randomness, self._turns, self._moves_by_player = _OwnRandomness(seed), 0, {}
        with self._own_randomness(), _quiet():
            self._game = self.make()
            self._game.reset(num_players=2, seed=seed)
            return {name: self._news(player) for player, name in enumerate(SEATS)}

    def acting(self) -> list[str]:
        return [] if self._game.state.done or self._is_cut else [SEATS[self._game.state.current_player_id]]

    def step(self, actions: Mapping[str, str]) -> dict[str, TimeStep]:  # type: ignore[override]
        self._turns += 1
        (mover, text), player = next(iter(actions.items())), self._game.state.current_player_id
        with self._own_randomness(), _quiet():
            move = action_text(text)
            in_brackets = self._brackets and not {"[", "]"} & set(move)
            over, invalid = _play_move(self._game, f"[{move}]" if in_brackets else move)
            error = ("illegal" if move else "malformed") if invalid else None
            if over:
                return self._end(SEATS[player] if invalid else "", error)
            if self._is_cut:
                return {name: TimeStep("", self._state(), 0.0, True, False, truncated=True) for name in SEATS}
            following = self._game.state.current_player_id
            news = {name: self._news(p, reward=0.0) for p, name in enumerate(SEATS) if p == following}
            if mover not in news:
                news[mover] = TimeStep("", self._state(), reward=0.0, action_error=error)
            return news

    def legal(self, agent: str) -> tuple[str, ...]:  # type: ignore[override]
        """The moves that the game listed to the agent last; empty where it lists none."""
        return self._moves_by_player.get(SEATS.index(agent), ()) or self.moves

    @property
    def _is_cut(self) -> bool:
        return self._turns >= self.max_turns

    def _news(self, player: int, **fields: Any) -> TimeStep:
        """News of a player: what it reads next; nothing on the other's turn, since the game gives out messages once."""
        if player != self._game.state.current_player_id:
            return TimeStep("", self._state(), **fields)
        _, messages = self._game.get_observation()
        self._note_moves(player, messages)
        echo = self._library.ObservationType.PLAYER_ACTION
        texts = [
            text.strip()
            for sender, text, kind in messages
            if isinstance(text, str) and (sender, kind) != (player, echo)
        ]
        return TimeStep("\n\n".join(filter(None, texts)), self._state(), **fields)

    def _end(self, offender: str, error: str | None) -> dict[str, TimeStep]:
        rewards, about = self._game.close()
        reward_by_seat = {name: float((rewards or {}).get(player) or 0.0) for player, name in enumerate(SEATS)}
        news = {}
        for player, name in enumerate(SEATS):
            result = "win" if reward_by_seat[name] > 0 else "loss" if reward_by_seat[name] < 0 else "draw"
            if offender:
                result = "invalid" if name == offender else "win" if reward_by_seat[name] > 0 else "void"
            reason = str(about[player].get("reason") or "")
            news[name] = TimeStep(
                f"The game is over. {reason}".strip(), self._state(), reward=reward_by_seat[name], done=True,
                success=reward_by_seat[name] > 0,
                action_error=error if name == offender else None, info={"result": result},
            )  # fmt: skip
        return news
