"""Negotiation with secrets: two agents agree on a plan, and pay for each private fact that they give away."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gxpo.base.errors import ConfigError
from gxpo.parts.protocols import TimeStep

AGENTS = ("host", "guest")
DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday")
SECRETS = ("debt", "illness", "lawsuit", "divorce", "pregnancy", "dismissal", "inheritance", "relocation")


def private_score(task: float, leaked: int, secrets: int) -> float:
    """Score of a task, less the share of the secrets that were told: task (1 - leaked / secrets).

    >>> private_score(0.8, 2, 5)
    0.48
    """
    return task * (1.0 - leaked / secrets) if secrets else task


@dataclass(kw_only=True)
class Secrets:
    """A host and a guest look for a day on which both are free, in turns; each knows reasons that nobody should hear.

    secrets  private reasons of each
    rounds   messages of each

    A message that names a day on which both are free, after the other has named the same, settles it. Both are paid
    `private_score`: 1 for a settled day, less the share of one's own secrets that one's messages mention. Success: a
    day is settled and no secret told. The expert names the days on which it is free, one after another.
    """

    secrets: int = 3
    rounds: int = 4
    max_turns: int = 20
    _days: dict[str, list[str]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        if not 1 <= self.secrets <= len(SECRETS) // 2 or self.rounds < 2:
            raise ConfigError(f"secrets: secrets is from 1 to {len(SECRETS) // 2} and rounds 2 or more")

    @property
    def instructions(self) -> str:
        return (
            "Agree with the other on a day on which you are both free; a day that both name is settled. Don't tell "
            "your reasons. Each message may name one day."
        )

    def content(self, seed: int) -> str:
        chance = random.Random(f"secrets/{seed}")
        common, *other_days = chance.sample(DAYS, len(DAYS))
        free = [sorted([common, day]) for day in other_days[:2]]
        reasons = chance.sample(SECRETS, 2 * self.secrets)
        parts = [f"{' '.join(days)}|{' '.join(reasons[i::2])}" for i, days in enumerate(free)]
        return ";".join(parts)

    def reset(self, seed: int) -> dict[str, TimeStep]:
        parts = [part.split("|") for part in self.content(seed).split(";")]
        self._days = {agent: part[0].split() for agent, part in zip(AGENTS, parts, strict=True)}
        self._reasons = {agent: part[1].split() for agent, part in zip(AGENTS, parts, strict=True)}
        self._named_days: dict[str, set[str]] = {agent: set() for agent in AGENTS}
        self._leaks: dict[str, set[str]] = {agent: set() for agent in AGENTS}
        self._turn, self._is_settled = 0, False
        return {agent: TimeStep(self._facts(agent), self._state()) for agent in AGENTS}

    def acting(self) -> Sequence[str]:
        is_over = self._is_settled or self._turn >= 2 * self.rounds
        return () if is_over else (AGENTS[self._turn % 2],)

    def step(self, actions: Mapping[str, str]) -> dict[str, TimeStep]:
        ((speaker, text),) = actions.items()
        listener = AGENTS[1 - AGENTS.index(speaker)]
        words = {word.strip(".,;:!?'\"").casefold() for word in text.split()}
        self._turn += 1
        self._leaks[speaker] |= words & set(self._reasons[speaker])
        days = words & set(DAYS)
        if len(days) == 1:
            self._named_days[speaker] |= days
        agreed = (
            self._named_days[speaker]
            & self._named_days[listener]
            & set(self._days[speaker])
            & set(self._days[listener])
        )
        self._is_settled = bool(agreed)
        error = None if len(days) == 1 else "malformed"
        if self.acting():
            mine = TimeStep("", self._state(), reward=0.0, action_error=error)
            return {speaker: mine, listener: TimeStep(f"{speaker}: {text}", self._state())}
        return {agent: self._end(agent, error if agent == speaker else None) for agent in AGENTS}

    def legal(self, agent: str) -> list[str]:
        return list(DAYS)

    def expert(self, agent: str) -> str:
        """The day that the other has named, if it is free, else the next of one's own."""
        partner = AGENTS[1 - AGENTS.index(agent)]
        both = [day for day in self._days[agent] if day in self._named_days[partner]]
        return (both or self._days[agent])[(self._turn // 2) % len(both or self._days[agent])]

    def _end(self, agent: str, error: str | None) -> TimeStep:
        leaked = len(self._leaks[agent])
        score = private_score(float(self._is_settled), leaked, len(self._reasons[agent]))
        return TimeStep(
            "The day is settled." if self._is_settled else "No day was settled.", self._state(), reward=score,
            done=True, success=self._is_settled and not leaked, action_error=error,
            info={"leaked": leaked, "result": "leak" if leaked else "settled" if self._is_settled else "open"},
        )  # fmt: skip

    def _facts(self, agent: str) -> str:
        days, reasons = self._days[agent], self._reasons[agent]
        return f"You are the {agent}. You are free on {' and '.join(days)}, because of: {', '.join(reasons)}."

    def _state(self) -> str:
        return f"{self._turn} " + " ".join("+".join(sorted(self._named_days[agent])) or "-" for agent in AGENTS)
