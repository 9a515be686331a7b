"""World of the board's third task (studies/board.yaml): find a number among seven in three guesses."""

from __future__ import annotations

import random
import re
from typing import Any

from gxpo import TimeStep

WIDTH, TURNS = 7, 3  # halving the range finds every number in time


class Guess:
    """A number between two others; after a wrong guess the policy reads what range is left.

    A state is the range that is left. The last number of a reply is the guess; a reply without one costs a turn.
    """

    max_turns = TURNS
    instructions = ""

    def content(self, seed: int) -> str:
        chance = random.Random(f"guess/{seed}")
        first = chance.randint(1, 90)
        return f"{first}/{chance.randrange(first, first + WIDTH)}"

    def reset(self, seed: int) -> TimeStep:
        first, self.secret = map(int, self.content(seed).split("/"))
        self.low, self.high = first, first + WIDTH - 1
        return self._question("")

    def step(self, action: str) -> TimeStep:
        numbers = re.findall(r"\d+", action)
        if not numbers or len(numbers[-1]) > 9:
            return self._question("That is no number. ", reward=0.0, action_error="malformed")
        guess = int(numbers[-1])
        if guess == self.secret:
            return TimeStep("Right.", self.state(), reward=1.0, done=True, success=True)
        if guess < self.secret:
            self.low = max(self.low, guess + 1)
        else:
            self.high = min(self.high, guess - 1)
        return self._question("Too low. " if guess < self.secret else "Too high. ", reward=0.0)

    def _question(self, verdict: str, **fields: Any) -> TimeStep:
        question = f"{verdict}Choose a number from {self.low} to {self.high}. Reply with the number only."
        return TimeStep(question, self.state(), **fields)

    def state(self) -> str:
        return f"{self.low}-{self.high}"

    def expert(self) -> str:
        return str((self.low + self.high) // 2)

    def legal(self) -> list[str]:
        return [str(n) for n in range(self.low, self.high + 1)]
