"""Step necessity: how much less often an attempt ends right if a step is taken away and the rest decoded again.

An intervention on a step ("Dynamics Within Latent Chain-of-Thought"; here in text): p(right | the step is there) -
p(right | it is dropped, or another attempt's stands there), each over continuations of the same policy.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gxpo.base.errors import ConfigError
from gxpo.parts.protocols import Budget, Task
from gxpo.sampling.rollouts import Independent
from gxpo.sampling.rollouts.cut_and_regenerate import step_begins
from gxpo.training import statistics
from gxpo.training.loop import Trainer

STREAM = -2  # the step of these draws: not those of training (from 1), nor of evaluation (-1)


@dataclass(frozen=True)
class StepNecessity:
    """Figures of one step of one right attempt.

    number   from 1; `steps`: how many the attempt has
    share_with, share_without   share of right continuations with the step and without it
    """

    task: str
    number: int
    steps: int
    text: str
    share_with: float
    share_without: float

    @property
    def necessity(self) -> float:
        """Difference of the two shares: 1 no other way was found, 0 not needed, below 0 it does harm.

        >>> round(StepNecessity("t", 1, 2, "", 0.8, 0.35).necessity, 6)
        0.45
        """
        return self.share_with - self.share_without


@dataclass(frozen=True)
class Necessity:
    """Result: attempts tried, how many of them were right, and the steps of these but the last of each."""

    attempts: int
    right: int
    steps: list[StepNecessity]

    def interval(self) -> tuple[float, float, float] | None:
        """Mean necessity with its 95% interval over tasks; None below two tasks."""
        by_task: dict[str, list[float]] = {}
        for s in self.steps:
            by_task.setdefault(s.task, []).append(s.necessity)
        means = [sum(x) / len(x) for x in by_task.values()]
        return None if len(means) < 2 else (sum(means) / len(means), *statistics.mean_interval(means))


def necessity(
    trainer: Trainer, n: int = 32, samples: int = 8, delimiter: str = "\n", mode: Literal["drop", "replace"] = "drop"
) -> Necessity:
    """Measure the necessity of the steps of right attempts at held-out tasks, one attempt at each.

    samples    continuations with the step, and as many without
    delimiter  what ends a step
    mode       "drop": the text goes on where the step began; "replace": the step of that number of the next right
               attempt stands there (attempts without one are left out)

    The last step, the answer, is not taken away. The continuation is judged with what precedes it.
    """
    if trainer.envs is not None:
        raise ConfigError("steps are taken out of a text: this task is an environment, whose actions can't be undone")
    # One attempt at each task; only right ones have steps that were enough.
    session = trainer.session(STREAM, seed=0, sampling=trainer.sampling, budget=Budget())
    tasks = trainer.source.held_out(n)
    session.know(tasks)
    forest = session.score(Independent(1).grow(tasks, session))
    verdict = forest.success if bool(forest.success.isfinite().any()) else forest.outcome
    attempts: list[tuple[Task, list[int], list[list[int]]]] = []
    for row in (verdict >= 1).nonzero().flatten().tolist():
        tokens = forest.action(int((forest.step_trajectory == row).nonzero()[0]))
        begins = step_begins(tokens, delimiter, session.decode)
        pieces = [list(tokens[a:b]) for a, b in zip(begins, [*begins[1:], len(tokens)], strict=True)]
        attempts.append(
            (session.tasks_by_id[forest.task[row]], list(forest.context(int(forest.prompt_node[row]))), pieces)
        )
    # Two prompts for each step: with it and without.
    cases: list[tuple[Task, int, int, list[int]]] = []
    prompts: list[tuple[Task, str]] = []
    for i, (task, prompt, pieces) in enumerate(attempts):
        others = attempts[(i + 1) % len(attempts)][2]
        for k in range(len(pieces) - 1):
            if mode == "replace" and (len(attempts) < 2 or k >= len(others) - 1):
                continue
            before = [token for piece in pieces[:k] for token in piece]
            cases.append((task, k, len(pieces), pieces[k]))
            for name, middle in (("with", pieces[k]), ("without", [] if mode == "drop" else others[k])):
                prefix = session.decode([*before, *middle])
                case = dataclasses.replace(task, id=f"{task.id}/{k}/{name}", prompt=(*prompt, *before, *middle))
                prompts.append((case, prefix))
    if not prompts:
        return Necessity(len(tasks), len(attempts), [])
    # All continuations at once, judged as texts together with what precedes them.
    session.know([task for task, _ in prompts])
    continuations = Independent(samples).grow([task for task, _ in prompts], session)
    prefix_by_task = {task.id: prefix for task, prefix in prompts}
    texts = [prefix_by_task[t] + x for t, x in zip(continuations.task, session.texts(continuations), strict=True)]
    scored_forest = session.score(continuations, texts)
    share = _shares(scored_forest, [task.id for task, _ in prompts])
    steps = [
        StepNecessity(task.id, k + 1, count, session.decode(piece), share[2 * i], share[2 * i + 1])
        for i, (task, k, count, piece) in enumerate(cases)
    ]
    return Necessity(len(tasks), len(attempts), steps)


def _shares(forest: Any, names: Sequence[str]) -> list[float]:
    """Share of right attempts at each task; an unscored attempt counts as wrong."""
    verdict = forest.success if bool(forest.success.isfinite().any()) else forest.outcome
    rights: dict[str, list[bool]] = {name: [] for name in names}
    for task, value in zip(forest.task, verdict.tolist(), strict=True):
        rights[task].append(value >= 1)
    return [sum(rights[name]) / len(rights[name]) for name in names]


def report(trainer: Trainer, n: int, samples: int, delimiter: str, mode: str, *, as_json: bool = False) -> str:
    """Measure step necessity and format it; in a delimiter \\n stands for the end of a line."""
    if mode not in ("drop", "replace"):
        raise ConfigError(f"--necessity {mode}: give drop or replace")
    result = necessity(trainer, n, samples, delimiter.replace("\\n", "\n"), mode)
    if not as_json:
        return text(result)
    rows = [vars(s) | {"necessity": s.necessity} for s in result.steps]
    return json.dumps({"attempts": result.attempts, "right": result.right, "steps": rows})


def text(result: Necessity) -> str:
    """Format the result: the mean with its interval, by number of the step, and the steps that are needed most."""
    lines = [
        f"{result.right} of {result.attempts} attempts are right, with {len(result.steps)} steps before their last"
    ]
    if not result.steps:
        return "\n".join([*lines, "nothing to take away: attempts have one step, or none is right (see --delimiter)"])
    if (interval := result.interval()) is not None:
        lines.append(f"necessity {interval[0]:.3f}, 95% interval over tasks {interval[1]:.3f} to {interval[2]:.3f}")
    for number in sorted({s.number for s in result.steps}):
        rows = [s for s in result.steps if s.number == number]
        right_with = sum(s.share_with for s in rows) / len(rows)
        right_without = sum(s.share_without for s in rows) / len(rows)
        lines.append(
            f"step {number}: right {right_with:.2f} with it, {right_without:.2f} without ({len(rows)} attempts)"
        )
    for s in sorted(result.steps, key=lambda s: -s.necessity)[:5]:
        lines.append(f"  {s.necessity:+.2f}  step {s.number} of {s.steps}, task {s.task}: {s.text.strip()[:100]!r}")
    return "\n".join(lines)
