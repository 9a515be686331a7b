"""Effective horizon: the card's number, and searches in a world in which the answer is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from gxpo.base.errors import ConfigError
from gxpo.environments import envs
from gxpo.explain.horizon import effective_horizon, horizon, text

LOCK = '''
from gxpo.parts.protocols import Env, TimeStep


class Lock(Env):
    """Two buttons; the right sequence, all a's, opens it; a wrong button ends the episode."""

    instructions, max_turns = "a or b", 4

    def __init__(self, length=1):
        self.length = length

    def reset(self, seed):
        self.at = 0
        return TimeStep("press", "0")

    def step(self, action):
        self.at += 1
        if action != "a":
            return TimeStep("", str(self.at), 0.0, True, False)
        is_open = self.at == self.length
        return TimeStep("", str(self.at), float(is_open), is_open, is_open if is_open else None)

    def legal(self):
        return ["a", "b"]

    def snapshot(self):
        return str(self.at)

    def restore(self, text):
        self.at = int(text)
'''


def test_the_number_of_the_card() -> None:
    assert effective_horizon(2, 16, 4) == pytest.approx(4.0) and effective_horizon(1, 4, 1) == 1.0


def test_a_lock_of_one_button_needs_one_step_and_one_rollout(tmp_path: Path) -> None:
    (tmp_path / "lock.py").write_text(LOCK)
    source = envs.source(f"{tmp_path}/lock.py:Lock", {})
    assert source is not None
    h = horizon(source, depth=1)
    # the right button pays at once: one action ahead is enough
    assert (h.value, h.depth, h.rollouts, h.actions, h.target) == (1.0, 1, 1, 2.0, 1.0)
    assert "effective_horizon    1.00 (k 1, m 1, 2.0 actions)" in text(h)


def test_what_can_not_be_searched() -> None:
    source = envs.source("toolqa", {})
    assert source is not None
    with pytest.raises(ConfigError, match="toolqa gives no legal"):
        horizon(source)
