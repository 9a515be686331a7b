"""Apply a method's own rewards to scored rollouts: `reward.shape`, then `reward.step`, then `reward.add`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from gxpo.errors import GxpoError
from gxpo.forest import Forest

Parts = Mapping[str, Callable[[Forest], Any]]  # by NAME of reward.STAGE.NAME


def keys(shapes: Parts, steps: Parts, adds: Parts) -> tuple[str, ...]:
    """Configuration keys of these parts: the value of `Forest.shaped_by` after `apply`."""
    staged = {"shape": shapes, "step": steps, "add": adds}
    return tuple(f"reward.{stage}.{name}" for stage, parts in staged.items() for name in parts)


def missing(forest: Forest, shapes: Parts, steps: Parts, adds: Parts) -> tuple[str, ...]:
    """Keys of the parts whose values the forest lacks: neither `shaped_by` names them nor a component does, as in
    rollouts that a run has written."""
    seen = {f"reward.shape.{name}" for name, part in shapes.items() if column(name, part) in forest.component_names}
    seen |= {f"reward.add.{name}" for name in adds if name in forest.component_names}
    return tuple(key for key in keys(shapes, steps, adds) if key not in seen and key not in forest.shaped_by)


def column(name: str, part: Any) -> str:
    """Component name for a shaped outcome; a task component that it reads keeps its own name."""
    return f"{name}_shaped" if getattr(part, "component", None) == name else name


def apply(forest: Forest, shapes: Parts, steps: Parts, adds: Parts) -> Forest:
    """Apply the parts: new outcomes, step rewards and components; `success` stays.

    shapes  f(forest) -> [R]: a new outcome in place of the old, one after the other
    steps   f(forest) -> [S], nan for none: added to the steps' own rewards; they see the shaped outcome
    adds    f(forest) -> {name: [R]}, or [R] by the part's NAME: added to the shaped outcome; they see the task's own

    Raises GxpoError where a value has another shape, or the name of a component that is there already.
    """
    columns = {name: forest.components[:, i] for i, name in enumerate(forest.component_names)}
    outcome = forest.outcome.to(torch.float64)
    for name, part in shapes.items():
        named = column(name, part)
        outcome = columns[_new(named, forest)] = _one_each(name, part(forest.replace(outcome=outcome)), outcome)
    reward = forest.step_reward
    for name, part in steps.items():
        reward = _with_step_reward(name, reward, part(forest.replace(outcome=outcome)))
    for slot, part in adds.items():
        found = part(forest)
        for name, value in ({slot: found} if isinstance(found, Tensor) else found).items():
            columns[_new(name, forest)] = value = _one_each(name, value, outcome)
            outcome = outcome + value
    scored = forest.with_rewards(outcome, components=columns)
    return scored.replace(
        step_reward=reward,
        shaped_by=keys(shapes, steps, adds),
        unshaped_outcome=forest.task_outcome,
        unshaped_step_reward=forest.step_reward,
    )


def _with_step_reward(name: str, reward: Tensor, found: Any) -> Tensor:
    """Add a part's values to the step rewards; nan is none."""
    if not isinstance(found, Tensor) or found.shape != reward.shape:
        told = f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
        raise GxpoError(f"reward.step.{name} gives one number for each of {len(reward)} steps, not {told}")
    known = reward.isfinite() | found.isfinite()
    total = reward.nan_to_num(nan=0.0) + found.to(torch.float64).nan_to_num(nan=0.0)
    return torch.where(known, total, torch.nan)


def _new(name: str, forest: Forest) -> str:
    if name in forest.component_names:
        raise GxpoError(f"the method's reward {name!r} has the name of a component of the task's: rename one of them")
    return name


def _one_each(name: str, value: Tensor, outcome: Tensor) -> Tensor:
    if value.shape != outcome.shape:
        raise GxpoError(f"reward {name!r} has shape {tuple(value.shape)}; shaping gives one value a trajectory")
    return value.to(torch.float64)
