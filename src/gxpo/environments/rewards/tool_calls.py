"""Rewards of tool calls: their economy, by the fewest calls that suffice; their results, turn by turn (MT-GRPO)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge, Gt
from torch import Tensor

from gxpo.base.errors import CheckpointError, GxpoError
from gxpo.environments.rewards.base import RewardPart
from gxpo.environments.rewards.shape import tools_used, verdicts
from gxpo.forest import grouped
from gxpo.forest.forest import Forest
from gxpo.parts.functions import Formula
from gxpo.parts.registry import part


# ---------------------------------------------------------------- shares by the number of calls
def otc(calls: Tensor, fewest: Tensor, *, smooth: Annotated[float, Gt(0)] = 1.0) -> Tensor:
    """OTC-GRPO: sin(pi m / (m + n)) for m calls where n suffice; where none are needed cos(pi m / (2 m + smooth)).

    smooth  the larger, the less a first call costs where none is needed; the paper sets the most calls there may be

    1 at m = n. Source: OTC, arXiv 2504.14870, by two public reimplementations.

    >>> otc(torch.tensor([2, 4, 8]), torch.tensor([2, 2, 2]))
    tensor([1.0000, 0.8660, 0.5878], dtype=torch.float64)
    >>> otc(torch.tensor([0, 1, 2]), torch.tensor([0, 0, 0]), smooth=4.0)
    tensor([1.0000, 0.8660, 0.7071], dtype=torch.float64)
    """
    m, n = calls.to(torch.float64), fewest.to(torch.float64)
    sine = torch.sin(math.pi * m / torch.where(m + n > 0, m + n, 1.0))
    return torch.where(n > 0, sine, torch.cos(math.pi * m / (2 * m + smooth)))


def linear(calls: Tensor, fewest: Tensor, *, cost: Annotated[float, Ge(0)] = 0.1) -> Tensor:
    """1 minus `cost` for each call beyond the fewest, at least 0."""
    return (1.0 - cost * (calls - fewest).to(torch.float64).clamp_min(0)).clamp_min(0)


def inverse(calls: Tensor, fewest: Tensor) -> Tensor:
    """1 / (m + 1) for m calls, whatever suffices. Source: HDPO, arXiv 2604.08545, and its code."""
    return 1.0 / (calls.to(torch.float64) + 1.0)


def zero_if_unneeded(calls: Tensor, fewest: Tensor) -> Tensor:
    """1 for an attempt that calls where calls are needed, or does not where none is; else 0. Source: SEM, arXiv
    2505.07903, reconstructed."""
    return ((calls > 0) == (fewest > 0)).to(torch.float64)


# ---------------------------------------------------------------- the reward
@part("tool_calls", stage="reward")
@dataclass(frozen=True)
class ToolCalls(Formula, RewardPart):
    """Tool-call economy of right answers: under `reward.shape` the outcome times a share, under `reward.add` the share
    itself, with `scales: false`. Wrong answers keep their outcome, or have 0: a cheap wrong one earns nothing.

    shape      share by calls and the fewest that suffice, in `rewards.tool_calls` or `file.py:function`; its
               keyword-only parameters are options: otc, linear, inverse, zero_if_unneeded
    reference  the fewest: "group_min", over the right answers of the group; "running_min", and of all groups of the
               task so far (a source that makes new tasks has none, and it is the group's); "task", what its info says:
               `needed_calls`, or the number of `gold_calls`
    count      "calls" that turns note in their info, as those of toolqa and zoom do; "turns"
    scales     true: the share multiplies the outcome

    The running minimum is in the checkpoint; an attempt is measured against a minimum that its own step has lowered.
    GxpoError where the rollouts do not hold the count or the reference.
    """

    shape: Any = "otc"
    reference: Literal["running_min", "group_min", "task"] = "running_min"
    count: Literal["calls", "turns"] = "calls"
    scales: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)
    fewest: dict[str, float] = field(init=False, repr=False, compare=False, default_factory=dict)

    functions: ClassVar[Mapping[str, tuple[str, bool]]] = {"shape": ("gxpo.environments.rewards.tool_calls", False)}

    @torch.no_grad()
    def __call__(self, forest: Forest) -> Tensor:
        calls_R, correct_R = self.count_calls(forest), verdicts(forest, "tool_calls")
        share_R = self.apply(self.shape, [calls_R, self.fewest_calls(forest, calls_R, correct_R)]).to(torch.float64)
        paid_R = share_R * forest.outcome if self.scales else share_R
        return torch.where(
            correct_R, paid_R, forest.outcome if self.scales else torch.where(forest.scored, 0.0, torch.nan)
        )

    def count_calls(self, forest: Forest) -> Tensor:
        """Number of calls, or turns, of each trajectory, [R] float64."""
        if self.count == "turns":
            return torch.bincount(forest.step_trajectory, minlength=forest.n_trajectories).to(torch.float64)
        return torch.tensor([float(len(names)) for names in tools_used(forest, "tool_calls")], dtype=torch.float64)

    def fewest_calls(self, forest: Forest, calls: Tensor, right: Tensor) -> Tensor:
        """Fewest calls known to suffice for each trajectory's task, [R] float64; its own number where none is known."""
        if self.reference == "task":
            return torch.tensor([_needed_calls(info) for info in forest.info], dtype=torch.float64)
        group, counts_R = forest.ids("group", axis="R"), right & forest.compared
        group_min_R = torch.where(grouped.count(group, counts_R) > 0, grouped.min(calls, group, counts_R), calls)
        if self.reference == "group_min":
            return group_min_R
        fewest_before_R = torch.tensor([self.fewest.get(task, math.inf) for task in forest.task], dtype=torch.float64)
        return torch.minimum(group_min_R, fewest_before_R)

    def observe(self, forest: Forest) -> None:
        """Update the running minimum of the calls of a right answer, by task."""
        if self.reference != "running_min":
            return
        right, calls = verdicts(forest, "tool_calls") & forest.compared, self.count_calls(forest)
        for row in right.nonzero().squeeze(1).tolist():
            task = forest.task[row]
            self.fewest[task] = min(self.fewest.get(task, math.inf), float(calls[row]))

    def state_dict(self) -> dict[str, Any]:
        return {"fewest": dict(self.fewest)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if set(state) != {"fewest"}:
            raise CheckpointError(f"the checkpoint's reward tool_calls holds {sorted(state)}, not 'fewest'")
        self.fewest.clear()
        self.fewest.update({task: float(n) for task, n in state["fewest"].items()})

    @property
    def remembers(self) -> bool:
        """True if the part has state for a checkpoint."""
        return self.reference == "running_min"


def _needed_calls(info: Mapping[str, Any]) -> float:
    """Number of calls that a task's info states: `needed_calls`, or the number of `gold_calls`."""
    calls = info.get("needed_calls", info.get("gold_calls"))
    if calls is None:
        raise GxpoError(
            "tool_calls.reference=task: a rollout's info has neither needed_calls nor gold_calls: choose a task that "
            "states them, as toolqa, or reference=group_min"
        )
    return float(calls) if isinstance(calls, (int, float)) else float(len(calls))


@part("tool_result", stage="reward")
@dataclass(frozen=True)
class ToolResult(RewardPart):
    """Tool-result reward (`reward.step`): `execution_reward` for a turn that the environment carried out (its
    `info` has no "action_error"), and `match_reward` where the text that came back contains the expected answer
    (`info["expected"]` of the trajectory, ignoring case).

    whole_words  true: an answer inside a longer word or number does not count, as 38 in -38, 138, 38.5 or b38. In the
                 authors' code it counts

    The last turn of a trajectory, after which nothing comes back, has none (nan). These are the turns' whole rewards:
    the environment's step reward is subtracted, so that the sum in the forest is this reward alone.

    Source: MT-GRPO, arXiv 2505.11821, and its rubric: about .2 for a tool that ran, .5 for the answer in its result.
    """

    execution_reward: float = 0.2
    match_reward: float = 0.5
    whole_words: bool = False

    def __call__(self, forest: Forest) -> Tensor:
        value_S = [math.nan] * forest.n_steps
        for step, acting_step in enumerate(forest.step_previous.tolist()):
            if acting_step < 0:
                continue
            # A turn's result is the observation of the next one, so each step pays the step before it.
            expected = forest.info[int(forest.step_trajectory[step])].get("expected")
            has_answer = expected is not None and self._contains(forest.observation_text[step] or "", str(expected))
            was_executed = not forest.step_info[acting_step].get("action_error")
            value_S[acting_step] = self.execution_reward * was_executed + self.match_reward * has_answer
        # `own.apply` adds the environment's step reward, which is not part of this reward.
        return torch.tensor(value_S, dtype=torch.float64) - forest.step_reward.nan_to_num(0.0)

    def _contains(self, text: str, answer: str) -> bool:
        """True if a text contains the answer, case aside; with `whole_words` not inside a longer word or number."""
        if not self.whole_words:
            return answer.lower() in text.lower()
        return re.search(rf"(?<![\w.-]){re.escape(answer)}(?!\w|\.\d)", text, re.IGNORECASE) is not None
