"""What asynchronous training can't do, refused before a run starts."""

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
    """ConfigError where `async.*` asks for what the run, or its method, can't do."""
    a = s.async_
    if not a.max_staleness:
        for key, asked in (("partial=true", a.partial), ("order=finish", a.order == "finish")):
            if asked:
                raise ConfigError(f"async.{key} needs groups that are sampled ahead: set async.max_staleness=1 or more")
        return
    asked = f"async.max_staleness={a.max_staleness}"
    if runtime.world() > 1:
        raise ConfigError(f"{asked} works in one process: start gxpo without torchrun, or set it to 0")
    if s.cluster.backend != "local":
        raise ConfigError(f"{asked} needs all weights in this process: set cluster.backend=local, or it to 0")
    if flow.is_flow(s.model):
        raise ConfigError(f"{asked}: model {s.model} is sampled in the step that trains it: set it to 0")
    if a.partial and a.order == "dispatch":
        raise ConfigError(
            "async.partial=true: the clock decides where an action goes on under new weights, so the run can't be "
            "reproducible: set async.order=finish, or partial=false"
        )
    if across_groups(method.rollout):
        raise ConfigError(
            f"{asked}: rollout {show(method.rollout)} looks across groups, and these are sampled one by one: set it to "
            "0, or take another rollout (rollout=independent)"
        )
    if (term := on_policy_term(method)) is not None:
        raise ConfigError(
            f"{asked}: {method.name} needs on-policy rollouts, since objective.surrogate={show(term.surrogate)} has no "
            "ratio: set it to 0, or weigh the mismatch: weight.mismatch=truncated"
        )


def across_groups(rollout: object) -> bool:
    """Whether a rollout must see a step's tasks together; of one that is no `RolloutPart`, whether it has a memory."""
    return bool(getattr(rollout, "across_groups", hasattr(rollout, "state_dict")))


def on_policy_term(method: Method) -> Any | None:
    """A term that reads log-probs without a ratio, where no weight corrects for what sampled them."""
    if any(WeightPart.hook(weight, "corrects_mismatch") for weight in method.weights.values()):
        return None
    for term in method.terms.values():
        if getattr(getattr(term, "surrogate", None), "on_policy", False):
            return term
    return None


def uncorrected(method: Method) -> str | None:
    """The key to set where nothing in a method's objective corrects for older weights; None where something does."""
    if any(WeightPart.hook(weight, "corrects_mismatch") for weight in method.weights.values()):
        return None
    over = {getattr(term, "ratio_over", None) for term in method.terms.values()}
    return "weight.mismatch=truncated" if "proximal" in over and "behaviour" not in over else None
