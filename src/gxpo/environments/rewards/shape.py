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
    "errors": lambda forest, _: noted_by_turns(forest, "action_error"),
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
      texts     what each attempt said; tools, errors: names of the tools that it called, and its `action_error`s

    What is unscored stays so.
    """

    function: Any = "signed"
    options: Mapping[str, Any] = field(default_factory=dict)

    functions: ClassVar[Mapping[str, tuple[str, bool]]] = {"function": ("gxpo.environments.rewards.outcomes", False)}

    @property
    def component(self) -> str | None:
        """Component that it reads, where that is an option."""
        return self.options.get("component")

    @property
    def reads(self) -> tuple[str, ...]:
        """Components that its options name."""
        named = [*self.options.get("factors", ()), self.options.get("fail")]
        return (*super().reads, *(name for name in named if name))

    @torch.no_grad()
    def __call__(self, forest: Forest) -> Tensor:
        value = self.apply(self.function, columns_for(self.function, forest, "reward.shape"))
        expect(value, (forest.n_trajectories,), "function of reward.shape", self.function, "trajectory")
        return torch.where(forest.scored, value.to(torch.float64), torch.nan)

    @property
    def reads_texts(self) -> bool:
        """Whether it is given what was said: the trainer decodes it then."""
        return "texts" in signature(self.function).columns


def columns_for(function: Callable[..., Any], forest: Forest, slot: str) -> list[Any]:
    """Columns that a function asks for by the names of its parameters; `slot` names its part in an error."""
    name, asked = function.__name__, signature(function).columns
    unknown = [c for c in asked if c not in COLUMNS]
    if unknown:
        close = hint(unknown[0], COLUMNS)
        raise ConfigError(
            f"{slot}: {name}{place_of(function)} asks for {unknown[0]!r}{close}; there is {', '.join(COLUMNS)}"
        )
    return [COLUMNS[c](forest, name) for c in asked]


def texts_of(forest: Forest, asker: str) -> list[str]:
    """What each trajectory's actions say, turn after turn; GxpoError where the forest does not hold it."""
    said: list[list[str]] = [[] for _ in range(forest.n_trajectories)]
    for r, text in zip(forest.step_trajectory.tolist(), forest.action_text, strict=True):
        if text is None:
            raise GxpoError(f"{asker} reads what was said, and these rollouts hold token ids alone: record action_text")
        said[r].append(text)
    return ["".join(own) for own in said]


def noted_by_turns(forest: Forest, name: str) -> list[list[Any]]:
    """What the turns of each trajectory note in their info under `name`; turns without it are passed over."""
    found: list[list[Any]] = [[] for _ in range(forest.n_trajectories)]
    for r, info in zip(forest.step_trajectory.tolist(), forest.step_info, strict=True):
        if name in info:
            found[r].append(info[name])
    return found


def tools_used(forest: Forest, asker: str) -> list[list[str]]:
    """Names of the tools that each trajectory called, in order; GxpoError where no turn notes `calls` in its info."""
    noted = noted_by_turns(forest, "calls")
    if forest.n_trajectories and not any(noted):
        raise GxpoError(
            f"{asker}: no turn notes `calls` in its info: choose a task whose environment does, as toolqa or zoom, or "
            "tool_calls.count=turns"
        )
    return [[str(call["name"]) for calls in own for call in calls] for own in noted]


def verdicts(forest: Forest, asker: str) -> Tensor:
    """Scored trajectories that the verifier calls correct, [R] bool; GxpoError where one has no verdict."""
    forest.need_verdicts(asker, each=True)
    return forest.scored & (forest.success >= 1)


def read_component(forest: Forest, name: str, asker: str, *, share: bool = True) -> Tensor:
    """Component `name` [R] float64, nan unknown.

    share  it is a share of something: refused where it is not from 0 to 1
    ConfigError where no reward computes it; `asker` is the part that needs it.
    """
    if name not in forest.component_names:
        raise NoComponent(asker, name, forest.component_names)
    value = forest.components[:, forest.component_names.index(name)]
    known = value[value.isfinite()]
    if share and known.numel() and not 0 <= float(known.min()) <= float(known.max()) <= 1:
        raise ConfigError(
            f"{asker}: component {name!r} is from {float(known.min()):g} to {float(known.max()):g}; it has to lie "
            "between 0 and 1"
        )
    return torch.where(value.isfinite(), value, torch.nan)


def mean_logprob(forest: Forest, asker: str) -> Tensor:
    """Mean log-prob of each trajectory's trainable tokens under its sampler, [R] float64; 0 where it has none.

    Refused where a token of a scored trajectory has no log-prob.
    """
    entries = (forest.path_trainable & forest.to_path(forest.scored, "R")).nonzero().squeeze(1)
    logprob, owner, n = forest.path_behaviour_logprob[entries], forest.path_trajectory[entries], forest.n_trajectories
    if missing := int(logprob.isnan().sum()):
        raise GxpoError(
            f"{asker} needs the sampler's log-probs, which {missing} of {entries.numel()} tokens lack: record `logprob`"
        )
    total = torch.zeros(n, dtype=torch.float64).index_add_(0, owner, logprob)
    return total / torch.bincount(owner, minlength=n).clamp_min(1)
