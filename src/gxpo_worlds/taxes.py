"""Taxes: a planner sets a tax rate, workers choose their hours, and the planner is paid the social welfare."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gxpo.base.errors import ConfigError
from gxpo.environments.envs.actions import action_text
from gxpo.parts.protocols import TimeStep

RATES, HOURS = tuple(map(str, range(0, 101, 10))), tuple(map(str, range(11)))
PLANNER = "planner"


def gini(coins: Sequence[float]) -> float:
    """Gini coefficient: mean absolute difference of all pairs over twice the mean; 0 where nobody has anything.

    >>> gini([10, 20, 70]), gini([1, 2, 3, 4])
    (0.4, 0.25)
    """
    total, n = math.fsum(coins), len(coins)
    return sum(abs(a - b) for a in coins for b in coins) / (2 * n * total) if total else 0.0


def equality(coins: Sequence[float]) -> float:
    """1 - Gini n / (n - 1): 1 where all have the same, 0 where one has all.

    >>> round(equality([10, 20, 70]), 9)
    0.4
    """
    n = len(coins)
    return 1.0 - gini(coins) * n / (n - 1) if n > 1 else 1.0


def welfare(coins: Sequence[float], weight: float = 1.0) -> float:
    """Equality times productivity a head: (weight equality + 1 - weight) sum / n.

    >>> round(welfare([10, 20, 70]), 6), round(welfare([10, 20, 70], 0.5), 6)
    (13.333333, 23.333333)
    """
    return (weight * equality(coins) + 1.0 - weight) * math.fsum(coins) / len(coins)


def utility(coins: float, eta: float = 0.23) -> float:
    """Isoelastic utility (c^(1 - eta) - 1) / (1 - eta); log c for eta 1.

    >>> [round(utility(c), 6) for c in (10, 20, 70)]
    [6.348619, 11.742043, 32.917734]
    """
    return math.log(coins) if eta == 1 else (coins ** (1 - eta) - 1) / (1 - eta)


@dataclass(kw_only=True)
class Taxes:
    """A planner and workers of different skills, over `years`: it sets a tax rate, then all workers choose their hours.

    workers  their number;   years  rounds of planner and workers
    eta      of `utility`;   labour  what an hour costs, in utility
    weight   of equality in the `welfare` that the planner is paid

    A worker earns skill times hours; what is taxed is shared out equally. A worker is paid the change of its utility
    less the cost of its hours, the planner the change of the welfare. An action that can't be read is a rate of 0, or
    no hours. The expert worker takes the best hours under the rate, by itself; the expert planner takes the rate to
    which these answer best. Success: of the planner a welfare at least that of no taxes, of a worker utility above 0.
    """

    workers: int = 3
    years: int = 2
    eta: float = 0.23
    labour: float = 0.3
    weight: float = 1.0
    max_turns: int = 20
    _coins: dict[str, float] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        if self.workers < 2 or self.years < 1:
            raise ConfigError(f"taxes: there are 2 workers or more and a year or more, not {self.workers!r}")

    @property
    def instructions(self) -> str:
        return (
            "The planner sets a tax rate in percent: 0, 10, ... 100. Workers choose hours, 0 to 10; an hour earns "
            "your skill in coins and costs effort. Taxes are shared out equally. Reply with one number."
        )

    def content(self, seed: int) -> str:
        chance = random.Random(f"taxes/{seed}")
        return " ".join(str(chance.randint(1, 5)) for _ in range(self.workers))

    def reset(self, seed: int) -> dict[str, TimeStep]:
        skills = list(map(int, self.content(seed).split()))
        self._skill = {f"worker_{i}": skill for i, skill in enumerate(skills)}
        self._coins, self._cost = dict.fromkeys(self._skill, 1.0), dict.fromkeys(self._skill, 0.0)
        self._rate, self._year, self._is_planning = 0, 0, True
        self._begun = {PLANNER: 0.0, **dict.fromkeys(self._skill, 0.0)}
        return {PLANNER: self._announcement(PLANNER), **{worker: TimeStep("", self._state()) for worker in self._skill}}

    def acting(self) -> list[str]:
        if self._year >= self.years:
            return []
        return [PLANNER] if self._is_planning else list(self._skill)

    def step(self, actions: Mapping[str, str]) -> dict[str, TimeStep]:
        choices = RATES if self._is_planning else HOURS
        numbers = {agent: action_text(text) for agent, text in actions.items()}
        errors = {agent: None if number in choices else "malformed" for agent, number in numbers.items()}
        values = {agent: int(number) if errors[agent] is None else 0 for agent, number in numbers.items()}
        if self._is_planning:
            self._rate, self._is_planning = values[PLANNER], False
            news_by_worker = {worker: self._announcement(worker) for worker in self._skill}
            return {PLANNER: TimeStep("", self._state(), reward=0.0, action_error=errors[PLANNER]), **news_by_worker}
        self._work(values)
        self._year, self._is_planning = self._year + 1, True
        worth_by_agent = {
            PLANNER: welfare(list(self._coins.values()), self.weight),
            **{w: self._worth(w) for w in self._skill},
        }
        is_over = self._year >= self.years
        news = {}
        for agent, worth in worth_by_agent.items():
            success = (worth >= self._untaxed() if agent == PLANNER else worth > 0) if is_over else None
            news[agent] = TimeStep(
                "" if agent != PLANNER and not is_over else self._text(agent), self._state(),
                reward=worth - self._begun[agent], done=is_over, success=success, action_error=errors.get(agent),
            )  # fmt: skip
        self._begun = worth_by_agent
        return news

    def legal(self, agent: str) -> list[str]:
        return list(RATES if agent == PLANNER else HOURS)

    def expert(self, agent: str) -> str:
        if agent != PLANNER:
            return self._best_hours(agent, self._rate)
        worth = {}
        for rate in RATES:
            hours = {w: int(self._best_hours(w, int(rate))) for w in self._skill}
            worth[rate] = welfare(list(self._after(self._coins, hours, int(rate)).values()), self.weight)
        return max(worth, key=worth.__getitem__)

    # ------------------------------------------------------------ the economy
    def _after(self, coins: Mapping[str, float], hours: Mapping[str, int], rate: int) -> dict[str, float]:
        """Coins after a year of these hours."""
        earned = {worker: self._skill[worker] * h for worker, h in hours.items()}
        shared = sum(earned.values()) * rate / 100 / len(earned)
        return {worker: coins[worker] + x * (1 - rate / 100) + shared for worker, x in earned.items()}

    def _work(self, hours: Mapping[str, int]) -> None:
        self._coins = self._after(self._coins, hours, self._rate)
        self._cost = {worker: self._cost[worker] + self.labour * h for worker, h in hours.items()}

    def _worth(self, worker: str) -> float:
        return utility(self._coins[worker], self.eta) - self._cost[worker]

    def _best_hours(self, worker: str, rate: int) -> str:
        def worth(hours: str) -> float:
            share = (1 - rate / 100) + rate / 100 / self.workers
            coins = self._coins[worker] + share * self._skill[worker] * int(hours)
            return utility(coins, self.eta) - self.labour * int(hours)

        return max(HOURS, key=worth)

    def _untaxed(self) -> float:
        """Welfare after all years without taxes, of workers that answer best."""
        coins = dict.fromkeys(self._skill, 1.0)
        current_coins, coins_by_worker = self._coins, coins
        for _ in range(self.years):
            self._coins = coins_by_worker
            coins_by_worker = self._after(coins_by_worker, {w: int(self._best_hours(w, 0)) for w in self._skill}, 0)
        self._coins = current_coins
        return welfare(list(coins_by_worker.values()), self.weight)

    def _announcement(self, agent: str) -> TimeStep:
        return TimeStep(self._text(agent), self._state())

    def _text(self, agent: str) -> str:
        if agent == PLANNER:
            people = "; ".join(f"skill {self._skill[w]}, {self._coins[w]:.1f} coins" for w in self._skill)
            return f"Year {self._year + 1} of {self.years}. Workers: {people}. Tax rate?"
        return f"Your skill is {self._skill[agent]}. You have {self._coins[agent]:.1f} coins. Tax {self._rate}%. Hours?"

    def _state(self) -> str:
        return f"{self._year} {self._rate} " + " ".join(f"{x:.4f}" for x in self._coins.values())
