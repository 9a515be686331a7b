"""Random and expert baselines of an environment, to compare training runs with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gxpo.base.errors import ConfigError


@dataclass(frozen=True)
class Baseline:
    """Results of a baseline: share of successes, mean number of actions, mean return."""

    success: float
    turns: float
    reward: float
    episodes: int


def baseline(env: Any, seeds: Iterable[int], policy: str = "random") -> Baseline:
    """Play one episode a seed with policy "random" (uniform over `legal()`, decided by seed and turn) or "expert".

    env   an `Env` with `legal()` or `expert()`; a policy that finds no action gives the episode up

    >>> from gxpo_worlds.keydoor import KeyDoor
    >>> baseline(KeyDoor(style="bare"), range(5), "expert").success
    1.0
    """
    if policy not in ("random", "expert"):
        raise ConfigError(f"a baseline's policy must be 'random' or 'expert', not {policy!r}")
    method = "legal" if policy == "random" else "expert"
    if not hasattr(env, method):
        raise ConfigError(f"{type(env).__name__} has no {method}(), which the baseline {policy!r} asks for its actions")
    successes, turns, rewards = [], [], []
    for seed in seeds:
        # the seed alone decides the draws, so a baseline does not depend on which other seeds are played
        random = np.random.default_rng(seed)
        step, episode_return, turn = env.reset(seed), 0.0, 0
        while not step.done and turn < env.max_turns:
            actions = env.legal() if policy == "random" else [env.expert()]
            action = actions[int(random.integers(len(actions)))] if actions else None
            # an expert that gives up, or no legal action: the episode counts as it stands
            if action is None:
                break
            step, turn = env.step(action), turn + 1
            episode_return += step.reward or 0.0
        successes.append(bool(step.success))
        turns.append(turn)
        rewards.append(episode_return)
    if not successes:
        raise ConfigError("a baseline needs at least one seed")
    return Baseline(float(np.mean(successes)), float(np.mean(turns)), float(np.mean(rewards)), len(successes))
