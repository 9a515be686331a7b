"""Listener reward: a frozen model's probability of the right answer, given the reasoning."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo.base.errors import ConfigError
from gxpo.base.judges import Believer, Judge, JudgeFailure
from gxpo.base.media import unmarked
from gxpo.environments.rewards.base import Failure
from gxpo.environments.rewards.judged import prompt_of

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import Task


@dataclass(eq=False)
class Listener:
    """{"judge": [R]}: probability that the listener gives to the right answer after the task, the attempt's text and
    `cue`; among the task's `info["choices"]` (texts), where it has some.

    listener  a checkpoint (`local_judge.LocalJudge`): a server or a function gives no log-probs of a given text
    answer_pattern  regular expression: the text from its last match on is hidden, so that the listener can't copy the
                    answer. "": all is shown

    An attempt whose task has no answer is unscored, and so is one that is too long for the listener.
    """

    listener: Judge
    cue: str = "\nThe answer is "
    answer_pattern: str = ""
    _failures: list[Failure] = field(default_factory=list, init=False, repr=False)

    name = "judge"
    gives = ("judge",)

    def __post_init__(self) -> None:
        if not isinstance(self.listener, Believer):
            raise ConfigError(
                "judge: mode 'confidence' reads log-probs of given tokens, which a server or a function does not give: "
                "name a checkpoint, teacher.models={listener: {role: judge, model: DIR}}"
            )
        try:
            re.compile(self.answer_pattern)
        except re.error as error:
            raise ConfigError(
                f"scoring.options.judge.answer_pattern={self.answer_pattern!r} can't be read: {error}"
            ) from error

    def failures(self) -> list[Failure]:
        """Return and clear the failures since the last call, one per trajectory."""
        collected, self._failures = self._failures, []
        return collected

    def visible_text(self, text: str) -> str:
        """Part of an attempt that the listener reads: the text before the last match of `answer_pattern`."""
        matches = list(re.finditer(self.answer_pattern, text)) if self.answer_pattern else []
        return unmarked(text[: matches[-1].start()] if matches else text)

    def __call__(self, forest: Forest, texts: Sequence[str], tasks: Sequence[Task]) -> dict[str, Tensor]:
        # Equal attempts of one task are asked once; a failure still counts for each of them.
        belief_by_question: dict[tuple[str, str, str], float | Failure] = {}
        belief_R = []
        for text, task in zip(texts, tasks, strict=True):
            key = (prompt_of(task, self.listener), self.visible_text(text), str(task.answer))
            if key not in belief_by_question:
                belief_by_question[key] = self._belief(*key, task)
            belief = belief_by_question[key]
            self._failures += [belief] if isinstance(belief, tuple) else []
            belief_R.append(math.nan if isinstance(belief, tuple) else belief)
        return {"judge": torch.tensor(belief_R, dtype=torch.float64)}

    def _belief(self, prompt: str, text: str, answer: str, task: Task) -> float | Failure:
        """Probability of the right answer after the text, among the task's choices if it has some; or the failure."""
        listener = self.listener
        assert isinstance(listener, Believer)
        if task.answer is None:
            return ("nonsense", f"task {task.id} has no answer whose probability a listener could give")
        choices = [str(x) for x in task.info.get("choices", ())]
        if choices and answer not in choices:
            return ("nonsense", f"task {task.id}: its answer is none of info['choices']")
        try:
            answer_logprob = listener.logprob(prompt, text + self.cue, answer)
            choice_logprobs = [listener.logprob(prompt, text + self.cue, x) for x in choices]
        # Each failure costs this attempt alone.
        except JudgeFailure as error:
            return (error.kind, str(error))
        # A softmax over the choices, with the largest taken out: sums of log-probs of long answers underflow.
        max_logprob = max(choice_logprobs, default=0.0)
        return (
            math.exp(answer_logprob - max_logprob) / sum(math.exp(x - max_logprob) for x in choice_logprobs)
            if choice_logprobs
            else math.exp(answer_logprob)
        )
