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
from gxpo.environments.rewards.group_level import Failure
from gxpo.environments.rewards.judged import prompt_of

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import Task


@dataclass(eq=False)
class Listener:
    """{"judge": [R]}: probability that the listener gives to the right answer after the task, the attempt's text and
    `cue`; among the task's `info["choices"]` (texts), where it has some.

    listener  a checkpoint (`local_judge.LocalJudge`): a server or a function gives no log-probs of a given text
    until     a regular expression: what stands from its last match on is not shown, so that the listener does not copy
              the answer. "": all is shown

    An attempt whose task has no answer is unscored, and so is one that is too long for the listener.
    """

    listener: Judge
    cue: str = "\nThe answer is "
    until: str = ""
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
            re.compile(self.until)
        except re.error as error:
            raise ConfigError(f"scoring.options.judge.until={self.until!r} can't be read: {error}") from error

    def failures(self) -> list[Failure]:
        """Return and clear the failures since the last call, one per trajectory."""
        found, self._failures = self._failures, []
        return found

    def shown(self, text: str) -> str:
        """What the listener reads of an attempt."""
        found = list(re.finditer(self.until, text)) if self.until else []
        return unmarked(text[: found[-1].start()] if found else text)

    def __call__(self, forest: Forest, texts: Sequence[str], tasks: Sequence[Task]) -> dict[str, Tensor]:
        known: dict[tuple[str, str, str], float | Failure] = {}
        value = []
        for text, task in zip(texts, tasks, strict=True):
            key = (prompt_of(task, self.listener), self.shown(text), str(task.answer))
            if key not in known:
                known[key] = self._believed(*key, task)
            found = known[key]
            self._failures += [found] if isinstance(found, tuple) else []
            value.append(math.nan if isinstance(found, tuple) else found)
        return {"judge": torch.tensor(value, dtype=torch.float64)}

    def _believed(self, prompt: str, text: str, answer: str, task: Task) -> float | Failure:
        listener = self.listener
        assert isinstance(listener, Believer)
        if task.answer is None:
            return ("nonsense", f"task {task.id} has no answer that a listener could be asked for")
        choices = [str(x) for x in task.info.get("choices", ())]
        if choices and answer not in choices:
            return ("nonsense", f"task {task.id}: its answer is none of info['choices']")
        try:
            own = listener.logprob(prompt, text + self.cue, answer)
            all_of = [listener.logprob(prompt, text + self.cue, x) for x in choices]
        except JudgeFailure as error:
            return (error.kind, str(error))
        top = max(all_of, default=0.0)
        return math.exp(own - top) / sum(math.exp(x - top) for x in all_of) if all_of else math.exp(own)
