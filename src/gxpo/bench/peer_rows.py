"""Rows of suite `peer`: 64 samples of 32 tokens, in gxpo and in TRL at its best micro-batch size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gxpo.bench.peer import GROUP, NEW, PROMPTS
from gxpo.bench.runner import Case, Side, Worker

if TYPE_CHECKING:
    from gxpo.bench.plan import Plan

MICRO_BATCHES = (4, 8, 16)
ALONE = (
    "groups of one, each prompt its own: gxpo whitens rewards over the batch (reinforce_pp), which reads every row; "
    "TRL has no groups of one and gets 32 prompts twice, which costs it the same, as it shares nothing"
)


@dataclass(frozen=True)
class Row:
    """One row: model, prompt tokens, group size."""

    model: str
    length: int
    group: int = GROUP

    @property
    def unique_token_ratio(self) -> float:
        """Tokens of the flat samples per unique token."""
        rows = PROMPTS * GROUP
        return rows * (self.length + NEW) / (rows // self.group * self.length + rows * NEW)

    @property
    def settings(self) -> dict[str, Any]:
        """gxpo's settings beyond `grpo@trl`."""
        return {} if self.group > 1 else {"method": "reinforce_pp", "objective.aggregate": "token_mean"}


ROWS = {
    "tiny/16": Row("tiny", 16),
    "tiny/256": Row("tiny", 256),
    "smollm2/16": Row("smollm2", 16),
    "smollm2/64": Row("smollm2", 64),
    "smollm2/256": Row("smollm2", 256),
    "smollm2/g1": Row("smollm2", 64, 1),
}


def sides(row: Row, folder: str, python: str | None, micro_batch: int) -> tuple[Side, Side]:
    """gxpo and TRL, in the same environment."""
    work = {"model": row.model, "length": row.length, "group": row.group, "folder": folder}
    own = Side("gxpo", "gxpo.bench.peer:gxpo_step", work | {"settings": row.settings}, python)
    return own, Side("trl", "gxpo.bench.peer:trl_step", work | {"micro_batch": micro_batch}, python)


def measure(name: str, plan: Plan) -> dict[str, Any]:
    """Measure the row of this name."""
    row, folder = ROWS[name], plan.models(ROWS[name].model)
    sizes = (8,) if plan.quick else MICRO_BATCHES
    tries = 2 if row.model == "tiny" else 1  # a round of a real model takes minutes
    seconds = {size: _shortest(sides(row, folder, plan.python, size)[1], plan, tries) for size in sizes}
    best = min(sizes, key=lambda size: seconds[size])
    figures: dict[str, Any] = {
        "unique_token_ratio": row.unique_token_ratio,
        "micro_batch": best,
        "micro_batch_seconds": {str(size): s for size, s in seconds.items()},
    }
    if row.group == 1:
        figures["note"] = ALONE
    return plan.measure(Case(name, *sides(row, folder, plan.python, best), figures=figures))


def _shortest(side: Side, plan: Plan, rounds: int) -> float:
    """Seconds of the fastest of so many rounds."""
    plan.notify(f"TRL's micro-batch of {side.arguments['micro_batch']}")
    worker = Worker(side, plan.threads)
    try:
        return min(worker.round()["seconds"] for _ in range(rounds))
    finally:
        worker.close()
