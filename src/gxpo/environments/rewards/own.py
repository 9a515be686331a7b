"""Apply a method's own rewards to scored rollouts: `reward.shape`, then `reward.step`, then `reward.add`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from gxpo.base.errors import GxpoError
from gxpo.forest.forest import Forest
from gxpo.parts.functions import expect, naming

Parts = Mapping[str, Callable[[Forest], Any]]  # by NAME of reward.STAGE.NAME


def keys(shapes: Parts, steps: Parts, adds: Parts) -> tuple[str, ...]:
    """Configuration keys of these parts: the value of `Forest.shaped_by` after `apply`."""
    parts_by_stage = {"shape": shapes, "step": steps, "add": adds}
    return tuple(f"reward.{stage}.{name}" for stage, parts in parts_by_stage.items() for name in parts)


def missing(forest: Forest, shapes: Parts, steps: Parts, adds: Parts) -> tuple[str, ...]:
    """Keys of the parts that have not been applied: neither `shaped_by` nor a component names them.

    Rollouts that a run has written hold the components without `shaped_by`.
    """
    present_keys = {
        f"reward.shape.{name}" for name, part in shapes.items() if column(name, part) in forest.component_names
    }
    present_keys |= {f"reward.add.{name}" for name in adds if name in forest.component_names}
    return tuple(key for key in keys(shapes, steps, adds) if key not in present_keys and key not in forest.shaped_by)


def column(name: str, part: Any) -> str:
    """Component name of a shaped outcome: the part's, or NAME_shaped where it reads the component of that name."""
    return f"{name}_shaped" if getattr(part, "component", None) == name else name


def apply(forest: Forest, shapes: Parts, steps: Parts, adds: Parts) -> Forest:
    """Apply the parts: new outcomes, step rewards and components; `success` stays.

    shapes  f(forest) -> [R]: a new outcome in place of the old, one after the other
    steps   f(forest) -> [S], nan for none: added to the steps' own rewards; they see the shaped outcome
    adds    f(forest) -> {name: [R]}, or [R] by the part's NAME: added to the shaped outcome; they see the task's own

    Raises GxpoError where a value has another shape, or the name of a component that is there already.
    """
    component_R = {name: forest.components[:, i] for i, name in enumerate(forest.component_names)}
    outcome_R = forest.outcome.to(torch.float64)
    # Each shape sees the outcome of the one before it.
    for name, part in shapes.items():
        shaped_R = _call_part(f"reward.shape.{name}", part, forest.replace(outcome=outcome_R))
        shaped_R = _checked_R(f"reward.shape.{name}", part, shaped_R, forest)
        outcome_R = component_R[_check_new_component(column(name, part), forest)] = shaped_R
    # Step parts see the shaped outcome and the environment's own step rewards, not each other's.
    reward_S = forest.step_reward
    for name, part in steps.items():
        added_S = _call_part(f"reward.step.{name}", part, forest.replace(outcome=outcome_R))
        added_S = expect(added_S, reward_S.shape, f"reward.step.{name}", part, "step (nan for none)")
        reward_S = _with_step_reward(reward_S, added_S)
    # Added parts see the task's own outcome, neither the shaped one nor what another part has added.
    for slot, part in adds.items():
        key = f"reward.add.{slot}"
        components = _call_part(key, part, forest)
        for name, value_R in (components if isinstance(components, Mapping) else {slot: components}).items():
            value_label = key if name == slot else f"{key}, value {name!r}"
            component_R[_check_new_component(name, forest)] = value_R = _checked_R(value_label, part, value_R, forest)
            outcome_R = outcome_R + value_R
    # The task's own values stay in the forest, beside the keys that say what has been applied.
    rewarded_forest = forest.with_rewards(outcome_R, components=component_R)
    return rewarded_forest.replace(
        step_reward=reward_S,
        shaped_by=keys(shapes, steps, adds),
        unshaped_outcome=forest.task_outcome,
        unshaped_step_reward=forest.step_reward,
    )


def _call_part(label: str, part: Callable[[Forest], Any], forest: Forest) -> Any:
    with naming(label, part):
        return part(forest)


def _checked_R(label: str, part: Any, value: Any, forest: Forest) -> Tensor:
    """Values of a part, checked to be [R], in float64."""
    return expect(value, (forest.n_trajectories,), label, part, "trajectory").to(torch.float64)


def _with_step_reward(reward_S: Tensor, added_S: Tensor) -> Tensor:
    """Sum of two step rewards [S], nan where both are nan."""
    is_known_S = reward_S.isfinite() | added_S.isfinite()
    total_S = reward_S.nan_to_num(nan=0.0) + added_S.to(torch.float64).nan_to_num(nan=0.0)
    return torch.where(is_known_S, total_S, torch.nan)


def _check_new_component(name: str, forest: Forest) -> str:
    """Return the name of a new component; GxpoError where the task has a component of that name."""
    if name in forest.component_names:
        raise GxpoError(f"the method's reward {name!r} has the name of a component of the task's: rename one of them")
    return name
