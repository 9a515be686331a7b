"""Adapter of a verifiers rubric (`Rubric`, `RubricGroup` and subclasses, 0.1.14 to 0.3) as a reward."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gxpo.base.library_logs import errors_of
from gxpo.base.usercode import described, one_line
from gxpo.environments.rewards.batch import DecodeRaw, columns_of, raw_texts, run_coroutine

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import Task

_current_rows: ContextVar[tuple[int, ...]] = ContextVar("scored", default=())


def is_rubric(value: Any) -> bool:
    """True for an object of one of the library's rubric classes; the library is not imported for that."""
    return not isinstance(value, type) and all(
        callable(getattr(value, name, None)) for name in ("score_rollout", "score_group", "add_reward_func")
    )


class _ErrorLog(logging.Handler):
    """Handler that collects the library's logged errors by rollout: it logs a function that raises and counts 0."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.message_by_row: dict[int, str] = {}

    def emit(self, record: logging.LogRecord) -> None:
        for r in _current_rows.get():
            self.message_by_row.setdefault(r, one_line(record.getMessage()))


class Rubric:
    """Adapter of a rubric to `base.GroupReward`: component `rubric` is its weighted sum, values of its functions
    are recorded beside it.

    Functions of one rollout are called for all rollouts at the same time, those of a group with the rollouts of one
    group. A function that raises leaves the rollouts that it was called for unscored, where the library counts 0.
    """

    name = "rubric"
    decode_raw: DecodeRaw | None = None  # given by the trainer

    def __init__(self, rubric: Any) -> None:
        self.rubric = rubric
        self.reports = tuple(n for n in rubric._get_reward_func_names() if n != self.name)
        self._failures: list[tuple[str, str]] = []

    def failures(self) -> list[tuple[str, str]]:
        """Return and clear the failures since the last call."""
        collected, self._failures = self._failures, []
        return collected

    def __call__(self, forest: Forest, texts: Sequence[str], tasks: Sequence[Task]) -> Mapping[str, Tensor]:
        """Score all rollouts of a step: the weighted sum and each function's value, [R], nan where one raised."""
        raw = raw_texts(forest, texts, self.decode_raw)
        states = [_state(r, *row) for r, row in enumerate(zip(texts, tasks, raw, strict=True))]
        # Functions of a group need its rollouts in one call; others are called for each rollout by itself.
        groups: dict[int, list[int]] = {}
        for r, group in enumerate(forest.ids("group", axis="R").tolist()):
            groups.setdefault(group, []).append(r)
        members_by_call = list(groups.values()) if self.rubric.has_group_rewards else [[r] for r in range(len(texts))]
        # The library logs an exception of a function and goes on, so the log is the only sign of it.
        error_log = _ErrorLog()
        with errors_of("verifiers", error_log):
            scoring = run_coroutine(self._score_all([tuple(x) for x in members_by_call], states))
        message_by_row = scoring | error_log.message_by_row
        self._failures += [("raised", message) for message in message_by_row.values()]
        columns = {self.name: [math.nan if r in message_by_row else float(s["reward"]) for r, s in enumerate(states)]}
        # A rollout whose call failed may lack metrics.
        for name in dict.fromkeys(k for s in states for k in s.get("metrics") or {}):
            values = [(s.get("metrics") or {}).get(name) for s in states]
            columns[name] = [math.nan if r in message_by_row or x is None else float(x) for r, x in enumerate(values)]
        return {name: torch.tensor(x, dtype=torch.float64) for name, x in columns.items()}

    async def _score_all(self, rows: Sequence[tuple[int, ...]], states: Sequence[dict[str, Any]]) -> dict[int, str]:
        """Score the states in place, concurrently; return messages of failed calls by rollout."""
        message_by_row: dict[int, str] = {}

        async def score_members(members: tuple[int, ...]) -> None:
            _current_rows.set(members)
            try:
                if self.rubric.has_group_rewards:
                    await self.rubric.score_group([states[r] for r in members])
                else:
                    await self.rubric.score_rollout(states[members[0]])
            except Exception as error:
                message_by_row.update({r: described(error) for r in members})

        await asyncio.gather(*(score_members(members) for members in rows))
        return message_by_row


def _state(number: int, text: str, task: Task, raw: str) -> dict[str, Any]:
    """State of a rollout as the library expects it: prompt and completion as messages, columns of the task beside."""
    prompt = [{"role": "user", "content": task.prompt}] if isinstance(task.prompt, str) else list(task.prompt)
    columns = columns_of(task)
    answer = columns.pop("answer", "")
    # A column `info` of the data is what the library calls so; without one all columns are.
    info = columns.get("info", columns)
    inputs = {"prompt": prompt, "answer": answer, "info": info, "example_id": number, **columns}
    return {
        **inputs,
        "input": inputs,
        "completion": [{"role": "assistant", "content": text}],
        "completion_raw": raw,
        "trajectory": [],
        "timing": {},
        "reward": math.nan,
        "metrics": {},
    }
