"""gxpo's own methods and objectives as implementations for the golden vectors and losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import torch

from gxpo.base.errors import ConfigError, MissingSignal
from gxpo.conformance.golden import golden
from gxpo.forest.forest import Forest
from gxpo.methods import METHODS
from gxpo.methods.compose import method as compose
from gxpo.methods.method import Method
from gxpo.parts.protocols import PolicyTokens

# Method -> constant in its golden file (a letter of the formula) -> field of the part (a word for it).
ALIASES: Mapping[str, Mapping[str, str]] = {
    "ngrpo": {"r_max": "value", "k": "count"},
    "lens": {"negative_weight": "alpha"},
    "xrpo": {"novelty": "strength"},
    "asymre": {"delta": "shift"},
    "adora": {"factor": "otherwise"},
    "a_grae": {"alpha": "full"},
    "tempsamp_r1": {"tau": "threshold", "a1": "above", "a2": "below"},
}
# Methods whose weight only leaves a member out and lets the others count for it: not part of the formula.
CREDIT_ALONE = ("mc_grpo",)
# Field of a golden file -> signal of the method, one value for each trajectory.
SIGNALS = {
    "baseline": "baseline",
    "reference_rewards": "baseline",
    "embeddings": "embedding",
}


def advantages(method: str, rewards: Sequence[float | None], groups: Sequence[int], **fields: Any) -> list[float]:
    """Compute advantage times weight under `gxpo.method(method)`, one number for each trajectory (its first token's).

    Raises NotImplementedError where gxpo lacks the method, a constant is not one of its keys and not its default, or a
    field is not part of a rollout.
    """
    if method not in METHODS:
        raise NotImplementedError(f"gxpo has no method {method}")
    defaults = golden(method).constants
    constants = {k: fields.pop(k) for k in list(fields) if k in defaults}
    composed = compose(method, _overrides(compose(method), constants, defaults, fields))
    forest, signals = _forest(rewards, groups, fields)
    forest = composed.shaped(forest)
    try:
        credit = composed.advantages(forest, signals)
        if method not in CREDIT_ALONE:
            credit = credit * composed.token_weights(forest, credit, signals)
    except MissingSignal as error:
        raise NotImplementedError(f"{method} reads {error.args[0]}") from None
    first = torch.searchsorted(forest.path_trajectory, torch.arange(forest.n_trajectories))
    return credit[first].tolist()


def _overrides(
    method: Method, constants: Mapping[str, Any], defaults: Mapping[str, Any], fields: dict[str, Any]
) -> dict[str, Any]:
    """Map constants to the method's keys that end in their names; raises NotImplementedError where one has no key."""
    out: dict[str, Any] = {}
    for name, value in constants.items():
        word = ALIASES.get(method.name, {}).get(name, name)
        keys = [
            key
            for key in method.keys
            if key.rpartition(".")[2] == word and key.startswith(("credit.", "weight.", "reward."))
        ]
        if not keys and value != defaults[name]:
            raise NotImplementedError(f"{method.name} has no {name}")
        for key in keys:
            current = method.keys[key].value
            out[key] = float(value) if isinstance(current, float) else value
    if "weights" in fields:
        out["credit.weights"] = {f"r{k}": float(w) for k, w in enumerate(fields.pop("weights"))}
    return out


def _forest(
    rewards: Sequence[float | None], groups: Sequence[int], fields: dict[str, Any]
) -> tuple[Forest, dict[str, Any]]:
    """Build completions as long as `lengths`, with the other fields in rollouts or signals; returns (forest, signals).

    Raises NotImplementedError for a field that has no place in either.
    """
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
    # Methods that mask tokens by the reference's perplexity need one: 1.6 masks nothing.
    signals: dict[str, Any] = {"reference_logprob": torch.full((forest.n_entries,), -0.5, dtype=torch.float64)}
    if "components" in fields:
        columns = fields.pop("components")
        columns_by_name = {f"r{k}": torch.tensor(column, dtype=torch.float64) for k, column in enumerate(columns)}
        forest = forest.with_rewards(forest.outcome, components=columns_by_name)
    if "mean_entropy" in fields:
        signals["entropy"] = forest.to_path(torch.tensor(fields.pop("mean_entropy"), dtype=torch.float64), "R")
    if "clusters" in fields:
        # cluster ids of a file are opaque within their group; a signal's are unique in the batch
        pairs = list(zip(groups, fields.pop("clusters"), strict=True))
        numbers = {pair: k for k, pair in enumerate(dict.fromkeys(pairs))}
        signals["answer_cluster"] = torch.tensor([numbers[pair] for pair in pairs])
    for name in [name for name in fields if name in SIGNALS]:
        signals[SIGNALS[name]] = torch.tensor(fields.pop(name), dtype=torch.float64)
    if fields:
        raise NotImplementedError(f"rollouts carry no {', '.join(fields)}")
    return forest, signals


def loss(
    objective: str,
    logprobs: Sequence[float],
    old: Sequence[float],
    advantages: Sequence[float],
    rows: Sequence[int],
    aggregate: str,
    **constants: Any,
) -> tuple[float, list[float]]:
    """Compute value and gradient of the policy term of `gxpo.method(objective)`.

    Raises NotImplementedError where gxpo has no such method or constant, or refuses the aggregation.
    """
    if objective not in METHODS:
        raise NotImplementedError(f"gxpo has no method {objective}")
    keys = {f"objective.{k}": float(v) if isinstance(v, (int, float)) else v for k, v in constants.items()}
    try:
        composed = compose(objective, {"objective.aggregate": aggregate, **keys})
    except ConfigError as error:
        raise NotImplementedError(str(error)) from None
    # rows are opaque ids of consecutive tokens: each run of equal ids is an answer
    lengths = [len(list(run)) for _, run in groupby(rows)]
    forest = Forest.from_completions([[1]] * len(lengths), [[[2] * n] for n in lengths], [[0.0]] * len(lengths))
    x = torch.tensor(logprobs, dtype=torch.float64, requires_grad=True)
    policy = PolicyTokens(x, torch.tensor(old, dtype=torch.float64))
    credit = torch.tensor(advantages, dtype=torch.float64)
    value, _ = composed.terms["policy"](forest, policy, credit, torch.ones_like(credit), {}, 0)
    (slope,) = torch.autograd.grad(value, x)
    return float(value.detach()), slope.tolist()
