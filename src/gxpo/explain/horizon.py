"""Effective horizon of a small world: how deep and how often one must look ahead at random to act well.

Laidlaw et al. 2023 and 2024 (SQIRL): the smallest k + log_A m such that acting greedily on Q estimated by m random
rollouts behind each of A^k sequences of actions succeeds.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from gxpo.base.errors import ConfigError
from gxpo.environments.envs.pool import EnvPool
from gxpo.environments.envs.sources import EnvSource
from gxpo.parts.protocols import EnvFailure, Reply, TimeStep

ROLLOUTS = (1, 4, 16)
MOST_STEPS = 300_000  # steps of the environment after which a larger search is not tried


@dataclass(frozen=True)
class Horizon:
    """Result of the search.

    value     k + log_A m; None: no search within the limits acts as well as `target`
    depth, rollouts, actions  k, m and A, the mean number of legal actions
    success   share of the seeds that succeed by each search that was tried: (k, m) -> share
    target    share to be reached: the expert's, 1 without one
    steps     steps of the environment that the search took
    """

    value: float | None
    depth: int
    rollouts: int
    actions: float
    success: dict[tuple[int, int], float]
    target: float
    steps: int


def effective_horizon(depth: int, rollouts: int, actions: float) -> float:
    """k + log_A m.

    >>> effective_horizon(2, 16, 4)
    4.0
    """
    return depth + (math.log(rollouts) / math.log(actions) if actions > 1 else 0.0)


class _Search:
    """Greedy play on Q by random rollouts, by snapshots of one world."""

    def __init__(self, envs: EnvPool, chance: random.Random) -> None:
        self.envs, self.chance, self.steps, self.branches, self.names = envs, chance, 0, [0, 0], 0

    def fresh(self, snapshot: str) -> str:
        """Continue a snapshot under a name of its own."""
        self.names += 1
        name = f"look {self.names}"
        self.envs.restore({name: snapshot})
        return name

    def legal(self, name: str) -> list[str]:
        """Legal actions of an episode; ConfigError where it fails or has none."""
        actions = self.envs.legal([name])[name]
        if isinstance(actions, EnvFailure) or not actions:
            raise ConfigError(f"{self.envs.name}: no legal actions ({getattr(actions, 'message', 'an empty list')})")
        self.branches = [self.branches[0] + len(actions), self.branches[1] + 1]
        return actions

    def act(self, name: str, action: str) -> TimeStep:
        """One step; a failure ends the search, since a failed branch has no value."""
        self.steps += 1
        step = self.envs.step({name: Reply(action)})[name]
        if isinstance(step, EnvFailure):
            raise ConfigError(f"{self.envs.name}: failed in the search: {step.message}")
        return step

    def finish_at_random(self, name: str, value: float, turns: int) -> float:
        """Return of an episode that goes on at random for at most `turns` actions."""
        for _ in range(turns):
            step = self.act(name, self.chance.choice(self.legal(name)))
            value += _gain(step)
            if step.done:
                return value
        self.envs.finish([name])
        return value

    def value(self, snapshot: str, depth: int, rollouts: int, turns: int) -> dict[str, float]:
        """Q of each legal action: the best mean return over sequences of `depth` actions that begin with it."""
        # The legal actions of the state, asked in an instance of its own.
        name = self.fresh(snapshot)
        actions = self.legal(name)
        self.envs.finish([name])
        out: dict[str, float] = {}
        for action in actions:
            # What the action pays, and the state that it leads to.
            name = self.fresh(snapshot)
            step = self.act(name, action)
            gain = _gain(step)
            if step.done or turns <= 1:
                out[action] = gain
                self.envs.finish([] if step.done else [name])
                continue
            child_snapshot = self.envs.snapshot([name])[name]
            self.envs.finish([name])
            if isinstance(child_snapshot, EnvFailure):
                raise ConfigError(f"{self.envs.name}: no snapshot: {child_snapshot.message}")
            # Behind it: further actions of the tree, or random play from its leaf.
            if depth > 1:
                out[action] = gain + max(self.value(child_snapshot, depth - 1, rollouts, turns - 1).values())
            else:
                ends = [self.finish_at_random(self.fresh(child_snapshot), gain, turns - 1) for _ in range(rollouts)]
                out[action] = math.fsum(ends) / rollouts
        return out

    def plays(self, seed: int, depth: int, rollouts: int, max_turns: int) -> bool:
        """True if greedy play from a seed succeeds; of equal actions one is drawn."""
        name = f"play {seed}"
        self.envs.reset({name: seed})
        for turn in range(max_turns):
            snapshot = self.envs.snapshot([name])[name]
            if isinstance(snapshot, EnvFailure):
                raise ConfigError(f"{self.envs.name}: no snapshot: {snapshot.message}")
            values = self.value(snapshot, depth, rollouts, max_turns - turn)
            best = max(values.values())
            step = self.act(name, self.chance.choice([a for a, v in values.items() if v >= best - 1e-12]))
            if step.done:
                return step.success is True
        self.envs.finish([name])
        return False


def _gain(step: TimeStep) -> float:
    """Payment of a step; at the end of a world whose steps pay nothing, the verdict."""
    if step.reward is not None:
        return step.reward
    return float(step.done and step.success is True)


def horizon(source: EnvSource, *, seeds: Sequence[int] = range(4), depth: int = 2) -> Horizon:
    """Find the cheapest look-ahead, up to `depth`, whose greedy play succeeds as often as the expert's.

    ConfigError for a world without snapshots and legal actions.
    """
    with EnvPool(source, workers=0) as envs:
        if missing := [p for p in ("snapshots", "legal") if p not in envs.provides]:
            raise ConfigError(f"{source.name} gives no {' and no '.join(missing)}: the effective horizon needs both")
        target = _expert_share(envs, seeds) if "expert" in envs.provides else 1.0
        search = _Search(envs, random.Random(0))
        success: dict[tuple[int, int], float] = {}
        pairs = [(k, m) for k in range(1, depth + 1) for m in ROLLOUTS]
        # cheapest first: by k + log_A m with the A of the first state
        envs.reset({"first": seeds[0]})
        breadth = len(search.legal("first"))
        envs.finish(["first"])
        for k, m in sorted(pairs, key=lambda pair: effective_horizon(*pair, breadth)):
            if search.steps > MOST_STEPS:
                break
            wins = [search.plays(seed, k, m, envs.max_turns) for seed in seeds]
            success[k, m] = sum(wins) / len(wins)
            actions = search.branches[0] / search.branches[1]
            if success[k, m] >= target:
                return Horizon(effective_horizon(k, m, actions), k, m, actions, success, target, search.steps)
        return Horizon(None, 0, 0, search.branches[0] / search.branches[1], success, target, search.steps)


def _expert_share(envs: EnvPool, seeds: Sequence[int]) -> float:
    """Share of the seeds on which the expert succeeds."""
    wins = 0
    for seed in seeds:
        name = f"expert {seed}"
        envs.reset({name: seed})
        for _ in range(envs.max_turns):
            action = envs.expert([name])[name]
            step = envs.step({name: Reply(action if isinstance(action, str) else "")})[name]
            if isinstance(step, EnvFailure) or step.done:
                wins += isinstance(step, TimeStep) and step.success is True
                break
        else:
            envs.finish([name])
    return wins / len(seeds)


def text(horizon: Horizon) -> str:
    """Format the result in lines."""
    searches_text = ", ".join(f"k {k} m {m}: {share:.0%}" for (k, m), share in horizon.success.items())
    head = f"{'effective_horizon':<20} "
    if horizon.value is None:
        head += f"not within these searches (target {horizon.target:.0%})"
    else:
        head += f"{horizon.value:.2f} (k {horizon.depth}, m {horizon.rollouts}, {horizon.actions:.1f} actions)"
    return f"{head}\n{'searches':<20} {searches_text}; {horizon.steps:,} steps"
