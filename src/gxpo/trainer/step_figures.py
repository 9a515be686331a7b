"""Figures of a step for metrics.jsonl: of its rollouts, their sources, its optimiser steps, and servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gxpo import grouped
from gxpo.engines.openai import OpenAIEngine
from gxpo.forest import Forest
from gxpo.pipeline import zero_signal_groups
from gxpo.protocols import StepInfo
from gxpo.segments.base import LABEL
from gxpo.trainer.episodes import of_agents, of_episodes


def _mean(x: Tensor) -> float | None:
    """Mean of the known values."""
    known = x[x.isfinite()]
    return float(known.mean()) if known.numel() else None


BORROWED = ("replay", "demonstration", "baseline")  # origins of rollouts that the policy is not to be judged by


def of_rollouts(forest: Forest, credit: Tensor) -> dict[str, Any]:
    """What the step's rollouts earned, and how many groups were told anything by their credit [P] (where the objective
    reads none: 1 at the entries that it reads). Borrowed rollouts are counted, but earn nothing here."""
    zero_signal = zero_signal_groups(forest, credit)
    lengths = torch.bincount(forest.path_trajectory, minlength=forest.n_trajectories).to(torch.float64)
    own = torch.tensor([origin not in BORROWED for origin in forest.origin], dtype=torch.bool)
    return {
        "reward_mean": _mean(forest.outcome[own]),
        **of_spread(forest, own),
        "success_rate": _mean(forest.success[own]),
        "zero_signal_groups": _mean(zero_signal.to(torch.float64)),
        **of_verdicts(forest, zero_signal),
        "groups": zero_signal.numel(),
        "trajectories": forest.n_trajectories,
        "unscored": int((~forest.scored).sum()),
        "length_mean": _mean(lengths[own]),
        "truncated_rate": _mean(forest.truncated[own].to(torch.float64)),
        **{f"reward_{name}": _mean(forest.components[own, i]) for i, name in enumerate(forest.component_names)},
        **of_labels(forest),
        **(of_episodes(forest) if any("end" in info for info in forest.info) else {}),
        **(of_agents(forest) if any("agent" in info for info in forest.info) else {}),
    }


def of_spread(forest: Forest, own: Tensor) -> dict[str, Any]:
    """How far outcomes of the trajectories `own` [R] lie apart: within their groups, and at most."""
    known = own & forest.scored
    group, outcome = forest.ids("group", axis="R"), torch.where(known, forest.outcome, 0.0)
    compared = known & (grouped.count(group, known) > 1)
    _, first = torch.unique(group[compared], return_inverse=True)
    spread = grouped.std(outcome, group, known)[compared]
    of_groups = torch.zeros(int(first.max()) + 1 if first.numel() else 0, dtype=torch.float64)
    of_groups[first] = spread
    every = forest.outcome[known]
    return {
        "reward_std": _mean(of_groups),
        "reward_min": float(every.min()) if every.numel() else None,
        "reward_max": float(every.max()) if every.numel() else None,
    }


def of_verdicts(forest: Forest, zero_signal: Tensor) -> dict[str, Any]:
    """The shares of groups with zero signal [groups] because all of their verdicts are right, or all wrong; nothing
    where there is no verdict."""
    known = forest.success.isfinite()
    if not bool(known.any()):
        return {}
    group = forest.ids("group", axis="R")
    verdict = torch.where(known, forest.success, 0.0)
    worst, best = grouped.min(verdict, group, known), grouped.max(verdict, group, known)
    right, wrong = (torch.zeros(len(zero_signal), dtype=torch.bool) for _ in range(2))
    right[group[known]], wrong[group[known]] = (worst >= 1.0)[known], (best <= 0.0)[known]
    return {
        "zero_signal_all_right": _mean((zero_signal & right).to(torch.float64)),
        "zero_signal_all_wrong": _mean((zero_signal & wrong).to(torch.float64)),
    }


def of_labels(forest: Forest) -> dict[str, Any]:
    """The share of turns in which the segmenter has labelled nothing; nothing where it gives no labels."""
    if LABEL not in forest.extras:
        return {}
    tagged = torch.zeros(forest.n_steps, dtype=torch.float64)
    tagged[forest.path_step[forest.extras[LABEL][forest.path_token] > 0]] = 1.0
    return {"untagged_turns": _mean(1.0 - tagged)}


def of_sources(forest: Forest, version: int) -> dict[str, Any]:
    """Where the step's rollouts come from: how many updates old they are, the shares of origins but the policy's, and
    how sure the sampler was of what it drew in this step.

    version   the policy's own at the start of the step. Tokens without a sampler (demonstrations) have no age.
    """
    known = forest.path_trainable & forest.path_behaviour_logprob.isfinite()
    node = forest.token_node[forest.path_token[known]]
    age = (version - forest.policy_version[node]).to(torch.float64)
    shares = {f"origin_{name}": forest.origin.count(name) / len(forest.origin) for name in sorted(set(forest.origin))}
    stale = {"staleness_mean": _mean(age), "staleness_max": float(age.max()) if age.numel() else None}
    fresh = forest.trainable & (forest.policy_version[forest.token_node] == version)
    return {
        **stale,
        "entropy_sampled": _mean(-forest.behaviour_logprob[fresh]),
        **({} if set(forest.origin) <= {"policy"} else shares),
    }


def of_updates(
    infos: Sequence[StepInfo], metrics: Sequence[Mapping[str, float]], gap: tuple[float | None, float | None]
) -> dict[str, Any]:
    """What the optimiser steps that were taken did, averaged over them; `gap`: the sampler's largest and mean."""
    run = [i for i in infos if not i.empty]
    taken = [i for i in run if not i.nonfinite]
    forward, flat = sum(i.tokens_forward for i in run), sum(i.tokens_flat for i in run)
    names = dict.fromkeys(k for m in metrics for k in m)
    return {
        **{name: _average([m[name] for m in metrics if name in m]) for name in names},
        "sampler_gap": gap[0],
        "sampler_gap_mean": gap[1],
        "loss": _average([i.loss for i in taken]),
        "grad_norm": _average([i.grad_norm for i in taken]),
        "optimiser_steps": len(taken),
        **({"weights_moved": _average(moved)} if (moved := [i.moved for i in taken if i.moved is not None]) else {}),
        "tokens_forward": forward,
        "unique_token_ratio": flat / forward if forward else None,
    }


def _average(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def of_servers(engine: Any) -> dict[str, float]:
    """What an engine on servers has counted so far; nothing of others."""
    return engine.figures() if isinstance(engine, OpenAIEngine) else {}
