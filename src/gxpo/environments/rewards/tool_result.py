"""Turn rewards by tool results: the call worked, and its result contains the answer (MT-GRPO)."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import torch
from torch import Tensor

from gxpo.environments.rewards.base import RewardPart
from gxpo.forest.forest import Forest
from gxpo.parts.registry import part


@part("tool_result", stage="reward")
@dataclass(frozen=True)
class ToolResult(RewardPart):
    """Tool-result reward (`reward.step`): `executed` for a turn that the environment carried out (its `info` has no
    "action_error"), and `found` where the text that came back contains the expected answer
    (`info["expected"]` of the trajectory, ignoring case).

    whole_words  whether an answer inside a longer word or number is not found: 38 in -38, 138, 38.5 or b38. In the
                 authors' code it is

    The last turn of a trajectory, after which nothing comes back, has none (nan). These are the turns' whole rewards:
    what the environment paid for them is taken off, so that the sum that stands in the forest is this reward alone.

    Source: MT-GRPO, arXiv 2505.11821, and its rubric: about .2 for a tool that ran, .5 for the answer in its result.
    """

    executed: float = 0.2
    found: float = 0.5
    whole_words: bool = False

    def __call__(self, forest: Forest) -> Tensor:
        value = [math.nan] * forest.n_steps
        for step, before in enumerate(forest.step_previous.tolist()):
            if before < 0:
                continue
            expected = forest.info[int(forest.step_trajectory[step])].get("expected")
            inside = expected is not None and self._holds(forest.observation_text[step] or "", str(expected))
            worked = not forest.step_info[before].get("action_error")
            value[before] = self.executed * worked + self.found * inside
        return torch.tensor(value, dtype=torch.float64) - forest.step_reward.nan_to_num(0.0)

    def _holds(self, text: str, answer: str) -> bool:
        if not self.whole_words:
            return answer.lower() in text.lower()
        return re.search(rf"(?<![\w.-]){re.escape(answer)}(?!\w|\.\d)", text, re.IGNORECASE) is not None
