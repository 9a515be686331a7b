"""What the TRL adapter provides to methods, and what each method requires there; needs no TRL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gxpo.adapters import asks
from gxpo.learning.base import Epochs
from gxpo.methods.method import Method, controls

# Signals that TRL's own forward passes give, and the model's hidden states.
SIGNALS = ("proximal_logprob", "reference_logprob", "entropy", "hidden")
OUTPUTS = ("logprob", "entropy", "mean_logprob", "divergence")
LENDS = tuple(asks.SERVICES)
GIVES: Mapping[str, Any] = {"signals": SIGNALS, "outputs": OUTPUTS, "lends": LENDS}


def declared(method: Method) -> list[str]:
    """Why TRL's trainer can't run it, whatever it is given: before one is made."""
    return asks.declared(method, "TRL", **GIVES)


def refusals(method: Method, verdicts: bool, rewards: Sequence[str]) -> list[str]:
    """Why not, with these reward functions, and with or without `success_at`."""
    return asks.refusals(method, "TRL", facts=tuple(asks.FACTS), verdicts=verdicts, components=rewards, **GIVES)


def of_update(method: Method) -> dict[str, int] | None:
    """TRL's settings that take the method's optimiser steps: passes over a generation batch, and steps of each; None
    where TRL has no such update."""
    update = method.update
    if type(update) is not Epochs or update.first is not None:
        return None
    found = {"num_iterations": update.epochs, "steps_per_generation": update.minibatches}
    keys = {"num_iterations": "update.epochs", "steps_per_generation": "update.minibatches"}
    chosen = {name for name, key in keys.items() if key in method.keys and method.keys[key].origin != "default"}
    return {name: n for name, n in found.items() if n != 1 or name in chosen}


def group_size(method: Method) -> int | None:
    """Size of a group that the method, or what is said beside it, states; None: any."""
    size_setting = method.keys.get("rollout.group_size")
    return None if size_setting is None or size_setting.origin == "default" else size_setting.value


def of_settings(method: Method) -> list[str]:
    """Why not, whatever TRL's settings are."""
    return asks.of_update(method, "TRL", ("first",))


def settings_for(method: Method) -> dict[str, Any]:
    """Fields of GRPOConfig that the method needs, with a value each; `steps_per_generation` is counted in optimiser
    steps, of gradient_accumulation_steps micro-batches each."""
    found: dict[str, Any] = {}
    if "reference_logprob" in method.needs:  # TRL loads a reference with a beta alone
        kl = method.terms.get("kl") or method.kl_reward
        found["beta"] = (kl.coef if kl is not None else 0.0) or 0.01
    found |= of_update(method) or {}
    if (size := group_size(method)) is not None:
        found["num_generations"] = size
    if needs_length(method):
        found["max_steps"] = 1000
    return found


def needs_length(method: Method) -> bool:
    """Whether a coefficient follows the course of the run, whose length the method leaves open."""
    by_run = any(number.schedule.over is None for number in method.scheduled)
    return by_run or any(getattr(part, "total_steps", 1) is None for part in controls(method).values())
