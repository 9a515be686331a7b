"""Three throws, of which two have to be heads: a world whose every expectation is a binomial sum."""

from __future__ import annotations

from dataclasses import dataclass

from gxpo import TimeStep


@dataclass
class Throws:
    """`a` is heads. Success after three throws with at least two; `loaded`: the first throw decides alone; `any_sign`:
    every second sign is heads, whatever a policy writes that has never learnt anything."""

    loaded: bool = False
    any_sign: bool = False
    max_turns: int = 3

    instructions = ""

    def reset(self, seed: int) -> TimeStep:
        self.said = ""
        return self._show()

    def step(self, action: str) -> TimeStep:
        self.said += ("a" if ord(action[:1] or "b") % 2 else "b") if self.any_sign else action[:1]
        return self._show()

    def _show(self) -> TimeStep:
        over = len(self.said) == 3
        won = self.said[:1] == "a" if self.loaded else self.said.count("a") >= 2
        return TimeStep(f"{self.said}?", f"s:{self.said}", float(won) if over else None, over, won if over else None)
