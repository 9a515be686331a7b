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
        shaped_R = _called(f"reward.shape.{name}", part, forest.replace(outcome=outcome))
        shaped_R = _of_trajectories(f"reward.shape.{name}", part, shaped_R, forest)
        outcome = columns[_new(column(name, part), forest)] = shaped_R
    reward = forest.step_reward
    for name, part in steps.items():
        added_S = _called(f"reward.step.{name}", part, forest.replace(outcome=outcome))
        added_S = expect(added_S, reward.shape, f"reward.step.{name}", part, "step (nan for none)")
        reward = _with_step_reward(reward, added_S)
    for slot, part in adds.items():
        what = f"reward.add.{slot}"
        components = _called(what, part, forest)
        for name, value in (components if isinstance(components, Mapping) else {slot: components}).items():
            label = what if name == slot else f"{what}, value {name!r}"
            columns[_new(name, forest)] = value = _of_trajectories(label, part, value, forest)
            outcome = outcome + value
    scored = forest.with_rewards(outcome, components=columns)
    return scored.replace(
        step_reward=reward,
        shaped_by=keys(shapes, steps, adds),
        unshaped_outcome=forest.task_outcome,
        unshaped_step_reward=forest.step_reward,
    )


def _called(what: str, part: Callable[[Forest], Any], forest: Forest) -> Any:
    with naming(what, part):
        return part(forest)


def _of_trajectories(what: str, part: Any, value: Any, forest: Forest) -> Tensor:
    """The values of a part, [R] float64."""
    return expect(value, (forest.n_trajectories,), what, part, "trajectory").to(torch.float64)


def _with_step_reward(reward: Tensor, found: Tensor) -> Tensor:
    """Add a part's values to the step rewards; nan is none."""
    known = reward.isfinite() | found.isfinite()
    total = reward.nan_to_num(nan=0.0) + found.to(torch.float64).nan_to_num(nan=0.0)
    return torch.where(known, total, torch.nan)


def _new(name: str, forest: Forest) -> str:
    if name in forest.component_names:
        raise GxpoError(f"the method's reward {name!r} has the name of a component of the task's: rename one of them")
    return name
