"""A world whose expert asks something that has no word in it before the mark: even who knows nothing hits that."""

from __future__ import annotations

from dataclasses import dataclass

from gxpo import TimeStep


@dataclass
class Asked:
    """Three turns, whatever is said; the expert says "?go"."""

    max_turns: int = 3

    instructions = "ask"

    def reset(self, seed: int) -> TimeStep:
        self.turn = 0
        return self._show()

    def step(self, action: str) -> TimeStep:
        self.turn += 1
        done = self.turn == self.max_turns
        return self._show(reward=float(done), done=done, success=True if done else None)

    def expert(self) -> str:
        return "?go"

    def _show(self, **more) -> TimeStep:
        return TimeStep(f"turn {self.turn}\n", state=str(self.turn), **more)
