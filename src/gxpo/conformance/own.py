"""gxpo's own methods as an implementation for the golden vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from gxpo.base.errors import MissingSignal
from gxpo.conformance.golden import golden
from gxpo.forest.forest import Forest
from gxpo.methods import METHODS
from gxpo.methods.compose import method as compose
from gxpo.methods.method import Method

# What the golden files call by the formula's letter, and the parts by what it does.
ALIASES: Mapping[str, Mapping[str, str]] = {
    "ngrpo": {"r_max": "value", "k": "count"},
    "lens": {"negative_weight": "alpha"},
    "xrpo": {"novelty": "strength"},
    "asymre": {"delta": "shift"},
    "adora": {"factor": "otherwise"},
    "a_grae": {"alpha": "full"},
    "tempsamp_r1": {"tau": "threshold", "a1": "above", "a2": "below"},
}
# The weight only leaves a member out, and lets the others count for it.
CREDIT_ALONE = ("mc_grpo",)
# Fields that are signals of the method, one value for each trajectory.
SIGNALS = {
    "baseline": "baseline",
    "reference_rewards": "baseline",
    "embeddings": "embedding",
}


def advantages(method: str, rewards: Sequence[float | None], groups: Sequence[int], **given: Any) -> list[float]:
    """Advantage times weight under `gxpo.method(method)`, one number for each trajectory (its first token's).

    Raises NotImplementedError where gxpo lacks the method, a constant is not one of its keys and not its default, or a
    field is not part of a rollout.
    """
    if method not in METHODS:
        raise NotImplementedError(f"gxpo has no method {method}")
    defaults = golden(method).constants
    constants = {k: given.pop(k) for k in list(given) if k in defaults}
    made = compose(method, _overrides(compose(method), constants, defaults, given))
    forest, signals = _forest(rewards, groups, given)
    forest = made.shaped(forest)
    try:
        credit = made.advantages(forest, signals)
        if method not in CREDIT_ALONE:
            credit = credit * made.token_weights(forest, credit, signals)
    except MissingSignal as error:
        raise NotImplementedError(f"{method} reads {error.args[0]}") from None
    first = torch.searchsorted(forest.path_trajectory, torch.arange(forest.n_trajectories))
    return credit[first].tolist()


def _overrides(
    made: Method, constants: Mapping[str, Any], defaults: Mapping[str, Any], given: dict[str, Any]
) -> dict[str, Any]:
    """The method's keys that end in a constant's name."""
    out: dict[str, Any] = {}
    for name, value in constants.items():
        word = ALIASES.get(made.name, {}).get(name, name)
        keys = [
            key
            for key in made.keys
            if key.rpartition(".")[2] == word and key.startswith(("credit.", "weight.", "reward."))
        ]
        if not keys and value != defaults[name]:
            raise NotImplementedError(f"{made.name} has no {name}")
        for key in keys:
            stated = made.keys[key].value
            out[key] = float(value) if isinstance(stated, float) else value
    if "weights" in given:
        out["credit.weights"] = {f"r{k}": float(w) for k, w in enumerate(given.pop("weights"))}
    return out


def _forest(
    rewards: Sequence[float | None], groups: Sequence[int], fields: dict[str, Any]
) -> tuple[Forest, dict[str, Any]]:
    """Completions as long as `lengths`, with the fields where rollouts carry them; and signals."""
    n = len(rewards)
    lengths = fields.pop("lengths", None) or [1] * n
    logprob = fields.pop("mean_logprob", None) or [-1.0] * n
    binary = all(r in (None, 0.0, 1.0) for r in rewards)
    forest = Forest.from_completions(
        [[1]] * n,
        [[[2] * count] for count in lengths],
        list(rewards),
        groups=[str(g) for g in groups],
        logprobs=[[[x] * count] for x, count in zip(logprob, lengths, strict=True)],
        success=list(rewards) if binary else None,
    )
    # A reference at perplexity 1.6, which masks nothing.
    signals: dict[str, Any] = {"reference_logprob": torch.full((forest.n_entries,), -0.5, dtype=torch.float64)}
    if "components" in fields:
        columns = fields.pop("components")
        named = {f"r{k}": torch.tensor(column, dtype=torch.float64) for k, column in enumerate(columns)}
        forest = forest.with_rewards(forest.outcome, components=named)
    if "mean_entropy" in fields:
        signals["entropy"] = forest.to_path(torch.tensor(fields.pop("mean_entropy"), dtype=torch.float64), "R")
    if "clusters" in fields:  # answers of two groups are two clusters
        pairs = list(zip(groups, fields.pop("clusters"), strict=True))
        numbers = {pair: k for k, pair in enumerate(dict.fromkeys(pairs))}
        signals["answer_cluster"] = torch.tensor([numbers[pair] for pair in pairs])
    for name in [name for name in fields if name in SIGNALS]:
        signals[SIGNALS[name]] = torch.tensor(fields.pop(name), dtype=torch.float64)
    if fields:
        raise NotImplementedError(f"rollouts carry no {', '.join(fields)}")
    return forest, signals
