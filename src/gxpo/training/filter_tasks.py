"""Filter tasks by measured success rate: every training task is attempted, and those within a band are written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from gxpo.base import runtime
from gxpo.base.errors import ConfigError
from gxpo.environments.tasks.in_memory import plain_row
from gxpo.environments.tasks.success_rates import visits_of
from gxpo.parts.protocols import Budget, Task
from gxpo.sampling.rollouts import Independent
from gxpo.training.checkpoint import write_atomic
from gxpo.training.config import RunConfig
from gxpo.training.step import Stages

RATE = "success_rate"  # the column that a written task has


def filter_tasks(
    resolved: RunConfig,
    out: Path,
    *,
    rollouts: int = 8,
    low: float = 0.1,
    high: float = 0.9,
    n: int = 512,
    notify: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Attempt each training task `rollouts` times and write those of success rate `low` to `high` to `out`, a .jsonl.

    n  tasks, where the source generates them instead of having a list

    A line holds the task and its `success_rate`. The source's held-out tasks go beside it, to STEM_held_out.jsonl. The
    policy, the reward and the sampling are the run's; nothing is trained. Gives the counts, and the tokens generated.
    Raises ConfigError where the band or the file can't be, and where tasks are instances of an environment.
    """
    held_out = out.with_name(f"{out.stem}_held_out.jsonl")
    if out.suffix != ".jsonl":
        raise ConfigError(f"{out}: a file of tasks is written as .jsonl")
    for path in (out, held_out):
        if path.exists():
            raise ConfigError(f"{path} is there already: give another --out")
    if not 0 <= low <= high <= 1 or rollouts < 1:
        raise ConfigError(f"a band of success rates is 0 <= low <= high <= 1, not {low} to {high} of {rollouts}")
    # The run's own stages without a trainer: the policy, reward and sampling are its, and no directory is made.
    runtime.start(group_of_one=resolved.settings.cluster.by_processes)
    stages = Stages(resolved, reward=None, notify=notify)
    stages.set_up(resolved.settings.init_from, measure=True)
    try:
        if stages.envs is not None:
            raise ConfigError(
                f"task {resolved.settings.task} is an environment, whose instances are not lines of a file"
            )
        source = stages.world.source
        # A list has all of its tasks; a generator is asked for n.
        tasks = list(getattr(source, "training", None) or source.draw(n, 1))
        # In batches of a step, so that memory is that of a step; tasks without a verdict get no rate.
        budget, rates = Budget(), {}
        for batch in _batches(tasks, resolved.settings.tasks.per_step):
            rates |= _success_rates(stages, batch, rollouts, budget)
            notify(f"{len(rates)} of {len(tasks)} tasks attempted")
        # A rate is a float quotient: 1e-9 keeps those at the ends of the band.
        within_band = [t for t in tasks if t.id in rates and low - 1e-9 <= rates[t.id] <= high + 1e-9]
        lines = [{**plain_row(t, t.id), RATE: rates[t.id]} for t in within_band]
        held_out_rows = [plain_row(t, t.id) for t in source.held_out(resolved.settings.eval.tasks)]
    finally:
        stages.close()
    # The held-out file first: a kill between the two leaves no training file without it.
    if runtime.rank() == 0:
        write_atomic(held_out, _json_lines(held_out_rows))
        write_atomic(out, _json_lines(lines))
    return {
        "tasks": len(tasks),
        "measured": len(rates),
        "kept": len(within_band),
        "below": sum(rate < low - 1e-9 for rate in rates.values()),
        "above": sum(rate > high + 1e-9 for rate in rates.values()),
        "all_wrong": sum(rate == 0 for rate in rates.values()),
        "all_right": sum(rate == 1 for rate in rates.values()),
        "generated_tokens": budget.generated_tokens,
        "out": str(out),
        "held_out": str(held_out),
    }


def _batches(tasks: Sequence[Task], size: int) -> Iterator[Sequence[Task]]:
    for begin in range(0, len(tasks), size):
        yield tasks[begin : begin + size]


def _success_rates(stages: Stages, tasks: Sequence[Task], rollouts: int, budget: Budget) -> dict[str, float]:
    """Attempt the tasks; return the success rates of those with a verdict."""
    session = stages.session(0, seed=stages.settings.seed, sampling=stages.sampling, budget=budget)
    session.know(tasks)
    forest = session.score(Independent(rollouts).grow(tasks, session))
    forest.need_verdicts("filter-tasks")
    return {task: sum(v.verdicts) / len(v.verdicts) for task, v in visits_of(forest).items()}


def _json_lines(rows: Sequence[Any]) -> str:
    return "".join(f"{json.dumps(row, ensure_ascii=False, allow_nan=False)}\n" for row in rows)
