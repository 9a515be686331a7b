"""Checks of asynchronous settings before a run starts: refuse methods, rollouts and systems that can't train ahead."""

from __future__ import annotations

from typing import Any

from gxpo.algorithms.weighting.base import WeightPart
from gxpo.base import runtime
from gxpo.base.errors import ConfigError
from gxpo.methods.method import Method
from gxpo.parts.definition import show
from gxpo.parts.settings import RunSettings
from gxpo.training.models import flow


def check_asynchronous(s: RunSettings, method: Method) -> None:
    """Raise ConfigError if the run or its method can't train with these `async.*` settings."""
    options = s.async_
    # A synchronous run has no groups ahead, so keys that change their sampling would be ignored silently.
    if not options.max_staleness:
        for key, is_set in (("partial=true", options.partial), ("order=finish", options.order == "finish")):
            if is_set:
                raise ConfigError(f"async.{key} needs groups that are sampled ahead: set async.max_staleness=1 or more")
        return
    setting = f"async.max_staleness={options.max_staleness}"
    # The sampler copies the learner's parameters within this process and needs all of them.
    if runtime.world() > 1:
        raise ConfigError(f"{setting} works in one process: start gxpo without torchrun, or set it to 0")
    if s.cluster.backend != "local":
        raise ConfigError(f"{setting} needs all weights in this process: set cluster.backend=local, or it to 0")
    if flow.is_flow(s.model):
        raise ConfigError(f"{setting}: model {s.model} is sampled in the step that trains it: set it to 0")
    # Order of dispatch promises the same run for the same seed.
    if options.partial and options.order == "dispatch":
        raise ConfigError(
            "async.partial=true: the clock decides where an action goes on under new weights, so the run can't be "
            "reproducible: set async.order=finish, or partial=false"
        )
    # Each group has a session of its own, so its rollout sees neither the other groups nor earlier steps.
    if looks_across_groups(method.rollout):
        raise ConfigError(
            f"{setting}: rollout {show(method.rollout)} looks across groups, and these are sampled one by one: set it "
            "to 0, or take another rollout (rollout=independent)"
        )
    if (term := on_policy_term(method)) is not None:
        raise ConfigError(
            f"{setting}: {method.name} needs on-policy rollouts, since objective.surrogate={show(term.surrogate)} has "
            "no ratio: set it to 0, or weigh the mismatch: weight.mismatch=truncated"
        )


def looks_across_groups(rollout: object) -> bool:
    """Return True if a rollout must see a step's tasks together, or has a memory without being a `RolloutPart`."""
    return bool(getattr(rollout, "across_groups", hasattr(rollout, "state_dict")))


def on_policy_term(method: Method) -> Any | None:
    """Return a term that reads log-probs without a ratio if no weight corrects for the sampling policy, else None."""
    if any(WeightPart.hook(weight, "corrects_mismatch") for weight in method.weights.values()):
        return None
    for term in method.terms.values():
        if getattr(getattr(term, "surrogate", None), "on_policy", False):
            return term
    return None


def missing_correction(method: Method) -> str | None:
    """Return the key that would correct the objective for older weights; None if the method corrects already."""
    if any(WeightPart.hook(weight, "corrects_mismatch") for weight in method.weights.values()):
        return None
    ratio_policies = {getattr(term, "ratio_over", None) for term in method.terms.values()}
    return "weight.mismatch=truncated" if "proximal" in ratio_policies and "behaviour" not in ratio_policies else None
