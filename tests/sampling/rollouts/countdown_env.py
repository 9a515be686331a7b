"""Count down to zero: an environment whose text, states and ends are plain to see. Used by several tests."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from gxpo import TimeStep


@dataclass
class Steps:
    """Any action that holds a letter of `good` counts one down; others are malformed. Reaching 0 succeeds.

    breaks  seeds whose remainder by 100 is below it break at their second action: 0..(crash-1) raise, the next hang
    """

    start: int = 3
    good: str = "abcdefghijklmnopqrstuvwxyz"
    long: int = 0  # extra characters in every observation
    crash: int = 0
    hang: int = 0
    die: int = 0
    max_turns: int = 20
    pays: bool = True

    instructions = "count"

    def reset(self, seed: int) -> TimeStep:
        self.seed, self.left, self.turn = seed, self.start + seed % 2, 0
        return self._show()

    def step(self, action: str) -> TimeStep:
        self.turn += 1
        fate = self.seed % 100
        if self.turn == 2 and fate < self.crash:
            raise RuntimeError("planned")
        if self.turn == 2 and fate < self.crash + self.hang:
            time.sleep(60)
        if self.turn == 2 and fate < self.crash + self.hang + self.die:
            os._exit(3)
        good = any(c in self.good for c in action)
        self.left -= good
        done = self.left == 0
        return self._show(reward=float(done) if self.pays else None, done=done, success=True if done else None,
                          action_error=None if good else "malformed")  # fmt: skip

    def _show(self, **more) -> TimeStep:
        return TimeStep(f"{self.left} left{'.' * self.long}\n>", state=str(self.left), **more)
