"""Search over prompts (`tasks.prompts`): tasks come under several texts, and the worse half is dropped by reward."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gxpo.base.errors import CheckpointError, TaskError
from gxpo.environments.tasks.epochs import count_from

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import Message, Task, TaskSource

PLACE = "{prompt}"


def with_template(template: str, task: Task) -> Task:
    """Copy of a task whose prompt, or the last user message of it, stands in the template.

    Raises TaskError for prompts that hold no such text (token ids, pictures alone).

    >>> from gxpo.parts.protocols import Task
    >>> with_template("Sum: {prompt}?", Task("a", "1+2")).prompt
    'Sum: 1+2?'
    """
    prompt: Any = task.prompt
    if isinstance(prompt, str):
        return replace(task, prompt=template.replace(PLACE, prompt))
    for i in reversed(range(len(prompt))):
        message: Message | int = prompt[i]
        if isinstance(message, Mapping) and message.get("role") == "user" and isinstance(message["content"], str):
            changed_message = {**message, "content": template.replace(PLACE, message["content"])}
            return replace(task, prompt=(*prompt[:i], changed_message, *prompt[i + 1 :]))
    raise TaskError(f"task {task.id!r} has no text that tasks.prompts could stand around: leave tasks.prompts out")


class PromptSearch:
    """Task source that tries templates on the tasks of `inner` and keeps the better ones (successive halving).

    Rounds r = 0, 1, ...: each template that is left gets `trials` * 2^r tasks or more; then the better half of them by
    mean outcome over all of their tasks stays (of an odd number, the larger half; of equal ones, the earlier). The
    outcome is what the task's rewards gave, a mean over a task's own rollouts; unscored ones don't count. Held-out
    tasks are shown under the best template so far, before the first step under the first.

    Source: successive halving, Jamieson and Talwalkar 2016 (arXiv 1502.07943), without its fixed budget.
    """

    def __init__(self, inner: TaskSource, templates: Sequence[str], trials: int) -> None:
        for template in templates:
            if PLACE not in template:
                raise TaskError(f"tasks.prompts: {template!r} does not say where the task's prompt stands, {{prompt}}")
        if len(set(templates)) < len(templates):
            raise TaskError("tasks.prompts holds a text twice: leave one out")
        self._inner, self.templates, self.trials = inner, list(templates), trials
        self._left = list(range(len(templates)))  # places in `templates`
        self._round = 0
        self._task_counts = [0] * len(templates)  # tasks with an outcome
        self._reward_sums = [0.0] * len(templates)  # of the mean outcomes of these tasks
        self._template_by_task: dict[str, int] = {}  # of the newest draw
        self._unobserved_forests: list[Forest] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._inner, name)

    @property
    def training(self) -> Sequence[Task]:
        """Empty: a list of the inner source would have its tasks without the texts around them."""
        return ()

    pool_tasks = training

    def draw(self, n: int, step: int) -> list[Task]:
        """Draw the `n` training tasks of a step; the templates that are left take turns."""
        begin, tasks, self._template_by_task = sum(self._task_counts), [], {}
        for task in self._inner.draw(n, step):
            # a task that comes twice in a step is one group, under one prompt
            turn = begin + len(self._template_by_task)
            place = self._template_by_task.setdefault(task.id, self._left[turn % len(self._left)])
            tasks.append(with_template(self.templates[place], task))
        return tasks

    def held_out(self, n: int) -> list[Task]:
        """Up to `n` held-out tasks, under the best template so far."""
        return [with_template(self.templates[self.best], task) for task in self._inner.held_out(n)]

    def count_from(self, step: int) -> None:
        """Set the step at which the epochs of the source begin."""
        count_from(self._inner, step)

    # ------------------------------------------------------------ what was tried
    @property
    def best(self) -> int:
        """Place of the template with the highest mean reward among those that are left; the first before any reward."""
        return max(self._left, key=lambda place: (self._mean(place), -place))

    def _mean(self, place: int) -> float:
        count = self._task_counts[place]
        return self._reward_sums[place] / count if count else -math.inf

    def see(self, forest: Forest) -> None:
        """Note scored rollouts of the step that is being sampled, for `observe`: a filter may remove some."""
        self._unobserved_forests.append(forest)
        if (see := getattr(self._inner, "see", None)) is not None:
            see(forest)

    def observe(self, forest: Forest) -> None:
        """Add the outcomes of a step; drop the worse half where each template has had its tasks."""
        forests, self._unobserved_forests = self._unobserved_forests or [forest], []
        outcomes_by_task: dict[str, list[float]] = {}
        for part in forests:
            for task, origin, outcome in zip(part.task, part.origin, part.task_outcome.tolist(), strict=True):
                if origin == "policy" and task in self._template_by_task and math.isfinite(outcome):
                    outcomes_by_task.setdefault(task, []).append(outcome)
        for task, outcomes in outcomes_by_task.items():
            place = self._template_by_task[task]
            self._task_counts[place] += 1
            self._reward_sums[place] += math.fsum(outcomes) / len(outcomes)
        needed = self.trials * (2 ** (self._round + 1) - 1)  # of this round and those before
        if len(self._left) > 1 and min(self._task_counts[place] for place in self._left) >= needed:
            ranked = sorted(self._left, key=lambda place: (-self._mean(place), place))
            self._left = sorted(ranked[: (len(ranked) + 1) // 2])
            self._round += 1
        self._inner.observe(forest)

    def figures(self) -> dict[str, float | None]:
        """Figures for metrics.jsonl."""
        mean = self._mean(self.best)
        return {
            "prompts_left": len(self._left),
            "prompt_best": self.best + 1,
            "prompt_reward": mean if math.isfinite(mean) else None,
        }

    def state_dict(self) -> dict[str, Any]:
        return {
            "source": self._inner.state_dict(),
            "left": list(self._left),
            "round": self._round,
            "task_counts": list(self._task_counts),
            "reward_sums": list(self._reward_sums),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if set(state) != {"source", "left", "round", "task_counts", "reward_sums"}:
            raise CheckpointError("the checkpoint has no rewards of prompts: it was made without tasks.prompts")
        self._inner.load_state_dict(state["source"])
        self._left, self._round = [int(place) for place in state["left"]], int(state["round"])
        self._task_counts = [int(count) for count in state["task_counts"]]
        self._reward_sums = [float(total) for total in state["reward_sums"]]
