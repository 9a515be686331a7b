"""Turn rewards for tool results: the call ran, and its result contains the answer (MT-GRPO)."""

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

    whole_words  true: an answer inside a longer word or number does not count, as 38 in -38, 138, 38.5 or b38. In the
                 authors' code it counts

    The last turn of a trajectory, after which nothing comes back, has none (nan). These are the turns' whole rewards:
    the environment's step reward is subtracted, so that the sum in the forest is this reward alone.

    Source: MT-GRPO, arXiv 2505.11821, and its rubric: about .2 for a tool that ran, .5 for the answer in its result.
    """

    executed: float = 0.2
    found: float = 0.5
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
            value_S[acting_step] = self.executed * was_executed + self.found * has_answer
        # `own.apply` adds the environment's step reward, which is not part of this reward.
        return torch.tensor(value_S, dtype=torch.float64) - forest.step_reward.nan_to_num(0.0)

    def _contains(self, text: str, answer: str) -> bool:
        """True if a text contains the answer, case aside; with `whole_words` not inside a longer word or number."""
        if not self.whole_words:
            return answer.lower() in text.lower()
        return re.search(rf"(?<![\w.-]){re.escape(answer)}(?!\w|\.\d)", text, re.IGNORECASE) is not None
