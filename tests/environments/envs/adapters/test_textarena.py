"""TextArena against a stand-in of the library, and the real one where it is installed."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from tests.environments.envs.fake_libraries import REASON, play, using

from gxpo.environments.envs.adapters import AdapterError
from gxpo.environments.envs.adapters.textarena import TextArena, listed_moves


def test_listed_moves() -> None:
    assert listed_moves("Valid moves:\n[a b], [c], [c]") == ("[a b]", "[c]")
    assert listed_moves("Available moves: up, down. Use [up].") == ("[up]",)
    assert listed_moves("[4] is taken") == ()


@using("textarena")
def test_textarena_one_player_and_global_randomness(library: str) -> None:
    """The number is drawn from the global generator; others may use it in between and are not disturbed."""
    seen_steps = []
    for noise in (1, 2):
        random.seed(noise)
        env = TextArena("HigherLower")
        steps = [env.reset(5)]
        for guess in range(10):
            random.random()
            if not steps[-1].done:
                steps.append(env.step(str(guess)))
        seen_steps.append(steps)
    assert seen_steps[0] == seen_steps[1]
    last = seen_steps[0][-1]
    assert (last.done, last.success, last.reward) == (True, True, 1.0) and "Right." in str(last.observation)
    assert [step.reward for step in seen_steps[0][:-1]] == [None] + [0.0] * (len(seen_steps[0]) - 2)


@using("textarena")
def test_textarena_leaves_the_global_generators_as_they_were(library: str) -> None:
    random.seed(7)
    np.random.seed(7)
    before = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[union-attr]  # the legacy form
    play(TextArena("HigherLower"), 0, ["3"])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before  # type: ignore[union-attr]


@using("textarena")
def test_invalid_moves_are_illegal_and_two_in_a_row_lose(library: str) -> None:
    env = TextArena("HigherLower")
    _, first, empty, second = play(env, 0, ["x", "", "y"])
    assert (first.action_error, first.done) == ("illegal", False) and "invalid move: [x]" in str(first.observation)
    assert (empty.action_error, empty.done) == ("malformed", False)
    assert (second.action_error, second.done, second.success, second.reward) == ("illegal", True, False, -1.0)
    assert first.state != env.reset(0).state  # a warned player is in another state


@using("textarena")
def test_textarena_opponents(library: str) -> None:
    """Five stones: 2, then the opponent's 1, leaves 2, which the player takes and wins."""
    env = TextArena("Pile", opponent="[1]")
    first, mine, last = play(env, 0, ["2", "2"])
    assert first.observation == "5 stones. Available moves: '[1]', '[2]'"
    assert "Player 1: [1]" in str(mine.observation) and "Player 0" not in str(mine.observation)
    assert (last.done, last.success, last.reward) == (True, True, 1.0)
    lost = play(TextArena("Pile", opponent="[2]"), 0, ["2", "1"])[-1]  # 5 - 2 - 2 - 1 = 0: the last stone is ours
    assert lost.success is True
    second = TextArena("Pile", opponent="[2]", seat=1)
    begun = second.reset(0)
    assert "3 stones." in str(begun.observation) and second.legal() == ("[1]", "[2]")
    beaten = play(second, 0, ["1"])[-1]  # it takes the last two
    assert (beaten.done, beaten.success, beaten.reward) == (True, False, -1.0)


@using("textarena")
def test_textarena_random_opponent_repeats_with_its_seed(library: str) -> None:
    def told(seed: int) -> list[Any]:
        env = TextArena("Pile")
        steps = [env.reset(seed)]
        while not steps[-1].done:
            steps.append(env.step("[1]"))
        return steps

    assert told(3) == told(3)
    assert len({repr(told(seed)) for seed in range(12)}) > 1


@using("textarena")
def test_opponents_that_can_not_play_are_errors_not_wins(library: str) -> None:
    with pytest.raises(AdapterError, match="lists no moves"):
        play(TextArena("SilentPile"), 0, ["1"])
    assert not play(TextArena("SilentPile", moves=("[1]",)), 0, ["1"])[-1].done
    for seed in range(8):  # what is not possible is not said
        assert not play(TextArena("SilentPile", moves=("[7]", "[1]", "[9]")), seed, ["1"])[-1].done
    with pytest.raises(AdapterError, match="lost by an invalid move"):
        play(TextArena("Pile", opponent="[9]"), 0, ["1"])
    with pytest.raises(AdapterError, match="did you mean"):
        TextArena("Pil-v0")


@using("textarena")
def test_textarena_is_truncated_at_max_turns(library: str) -> None:
    last = play(TextArena("HigherLower", max_turns=1), 1, ["[99]"])[-1]
    assert (last.done, last.truncated, last.success) == (True, True, False)


def test_real_textarena() -> None:
    pytest.importorskip("textarena", reason=REASON)
    for seed in range(3):
        env, other = TextArena("TicTacToe"), TextArena("TicTacToe")
        step, same = env.reset(seed), other.reset(seed)
        while not step.done:
            assert step == same and step.state is not None
            move = env.legal()[0]
            step, same = env.step(move), other.step(move)
        assert step.reward in (-1.0, 0.0, 1.0)
