"""Reward shaping by a pure function of outcome, verdict, length and components: `reward.shape.NAME`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from gxpo.base.errors import ConfigError, GxpoError, NoComponent
from gxpo.base.usercode import hint
from gxpo.environments.rewards.base import RewardPart
from gxpo.forest.forest import Forest
from gxpo.parts.functions import Formula, expect, place_of, signature
from gxpo.parts.registry import part

COLUMNS: Mapping[str, Callable[[Forest, str], Any]] = {  # [R] each, of a forest, for a function of this name
    "outcome": lambda forest, _: forest.outcome,
    "correct": lambda forest, asker: verdicts(forest, asker),
    "success": lambda forest, _: forest.success,
    "group": lambda forest, _: forest.ids("group", axis="R"),
    "plan": lambda forest, _: forest.ids("group", "info.plan", axis="R"),
    "counts": lambda forest, _: forest.compared & forest.scored,
    "length": lambda forest, _: forest.lengths(),
    "truncated": lambda forest, _: forest.truncated,
    "info": lambda forest, _: forest.info,
    "logprob": lambda forest, asker: mean_logprob(forest, asker),
    "read": lambda forest, asker: partial(read_component, forest, asker=asker),
    "texts": lambda forest, asker: texts_of(forest, asker),
    "tools": lambda forest, asker: tools_used(forest, asker),
    "errors": lambda forest, _: turn_notes(forest, "action_error"),
}


@part("shape", stage="reward")
@dataclass(frozen=True)
class Shape(Formula, RewardPart):
    """Shaped outcome under `reward.shape`; under `reward.add`, a component NAME that is added to the outcome.

    function  in `rewards.outcomes` by name, `file.py:function` or a function: of columns [R] by the names of its
              parameters, that gives [R]; its keyword-only parameters are options: `reward.shape.NAME.alpha`
      outcome, success, length, truncated, group; info: the rollouts' notes; plan: ids of equal info["plan"] in a group
      correct   bool, the verdict, which every scored trajectory must have
      counts    bool, scored and compared: whose values make up statistics of a group
      logprob   mean log-prob of the trained tokens under their sampler
      read      read(NAME) is a component, nan unknown, refused outside [0, 1]; with `share=False` any number
      texts     text of each attempt; tools, errors: names of the tools that it called, and its `action_error`s

    Unscored trajectories stay unscored.
    """

    function: Any = "signed"
    options: Mapping[str, Any] = field(default_factory=dict)

    functions: ClassVar[Mapping[str, tuple[str, bool]]] = {"function": ("gxpo.environments.rewards.outcomes", False)}
    columns: ClassVar[Mapping[str, Callable[[Forest, str], Any]]] = COLUMNS

    @property
    def component(self) -> str | None:
        """Component that the function reads, where that is an option."""
        return self.options.get("component")

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the components that the function's options name."""
        components = [*self.options.get("factors", ()), self.options.get("fail")]
        return (*super().reads, *(name for name in components if name))

    @torch.no_grad()
    def __call__(self, forest: Forest) -> Tensor:
        value = self.apply(self.function, columns_for(self.function, forest, "reward.shape", self.columns))
        expect(value, (forest.n_trajectories,), "function of reward.shape", self.function, "trajectory")
        return torch.where(forest.scored, value.to(torch.float64), torch.nan)

    @property
    def reads_texts(self) -> bool:
        """True if the function declares `texts`, so that the trainer decodes the actions."""
        return "texts" in signature(self.function).columns


def columns_for(
    function: Callable[..., Any],
    forest: Forest,
    slot: str,
    columns: Mapping[str, Callable[[Forest, str], Any]] = COLUMNS,
) -> list[Any]:
    """Columns that a function declares as parameters, in order; `slot` names its part in an error."""
    name, column_names = function.__name__, signature(function).columns
    unknown = [c for c in column_names if c not in columns]
    if unknown:
        hint_text = hint(unknown[0], columns)
        raise ConfigError(
            f"{slot}: {name}{place_of(function)} asks for {unknown[0]!r}{hint_text}; there is {', '.join(columns)}"
        )
    return [columns[c](forest, name) for c in column_names]


def texts_of(forest: Forest, asker: str) -> list[str]:
    """Text of each trajectory's actions, [R], turn after turn; GxpoError where the forest holds token ids alone."""
    texts_R: list[list[str]] = [[] for _ in range(forest.n_trajectories)]
    for r, text in zip(forest.step_trajectory.tolist(), forest.action_text, strict=True):
        if text is None:
            raise GxpoError(
                f"{asker} reads the text of actions, and these rollouts hold token ids alone: record action_text"
            )
        texts_R[r].append(text)
    return ["".join(turn_texts) for turn_texts in texts_R]


def turn_notes(forest: Forest, name: str) -> list[list[Any]]:
    """Values under `name` in the turns' info, [R] lists in time; turns without it are left out."""
    notes_R: list[list[Any]] = [[] for _ in range(forest.n_trajectories)]
    for r, info in zip(forest.step_trajectory.tolist(), forest.step_info, strict=True):
        if name in info:
            notes_R[r].append(info[name])
    return notes_R


def tools_used(forest: Forest, asker: str) -> list[list[str]]:
    """Names of the tools that each trajectory called, in order, [R]; GxpoError where no turn's info has `calls`."""
    calls_R = turn_notes(forest, "calls")
    if forest.n_trajectories and not any(calls_R):
        raise GxpoError(
            f"{asker}: no turn has `calls` in its info: choose a task whose environment notes them, as toolqa or zoom, "
            "or tool_calls.count=turns"
        )
    return [[str(call["name"]) for calls in turn_calls for call in calls] for turn_calls in calls_R]


def verdicts(forest: Forest, asker: str) -> Tensor:
    """Correct trajectories by the verifier, [R] bool, False for unscored ones; GxpoError where a verdict is missing."""
    forest.need_verdicts(asker, each=True)
    return forest.scored & (forest.success >= 1)


def read_component(forest: Forest, name: str, asker: str, *, share: bool = True) -> Tensor:
    """Component `name` [R] float64, nan unknown; ConfigError where no reward computes it.

    asker  the part that reads it, for errors
    share  the component is a share: ConfigError for values outside [0, 1]
    """
    if name not in forest.component_names:
        raise NoComponent(asker, name, forest.component_names)
    value_R = forest.components[:, forest.component_names.index(name)]
    finite_values = value_R[value_R.isfinite()]
    if share and finite_values.numel() and not 0 <= float(finite_values.min()) <= float(finite_values.max()) <= 1:
        raise ConfigError(
            f"{asker}: component {name!r} is from {float(finite_values.min()):g} to {float(finite_values.max()):g}; it "
            "has to lie between 0 and 1"
        )
    return torch.where(value_R.isfinite(), value_R, torch.nan)


def mean_logprob(forest: Forest, asker: str) -> Tensor:
    """Mean log-prob of each trajectory's trainable tokens under its sampler, [R] float64; 0 without such tokens.

    GxpoError where a token of a scored trajectory has no log-prob.
    """
    entries = (forest.path_trainable & forest.to_path(forest.scored, "R")).nonzero().squeeze(1)
    logprob_P, trajectory_P, n = (
        forest.path_behaviour_logprob[entries],
        forest.path_trajectory[entries],
        forest.n_trajectories,
    )
    if missing := int(logprob_P.isnan().sum()):
        raise GxpoError(
            f"{asker} needs the sampler's log-probs, which {missing} of {entries.numel()} tokens lack: record `logprob`"
        )
    total_R = torch.zeros(n, dtype=torch.float64).index_add_(0, trajectory_P, logprob_P)
    return total_R / torch.bincount(trajectory_P, minlength=n).clamp_min(1)
