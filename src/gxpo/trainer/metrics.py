"""`metrics.jsonl`: one flat JSON object per step, under documented names.

Every key that depends on the clock or the machine begins `time_` or `memory_`; all others are equal between equal runs,
also after a resume.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gxpo.errors import CheckpointError, RecordError
from gxpo.trainer.checkpoint import write_atomic

Value = int | float | str | None

NAMES: dict[str, str] = {
    "step": "number of the step, from 1",
    "reward_mean": "mean outcome of the step's scored rollouts, the method's own rewards included",
    "reward_NAME": "mean of the reward component NAME over the rollouts that have it",
    "success_rate": "share of successes among the rollouts with a verdict of the verifier",
    "zero_signal_groups": "share of groups whose credit is 0 on every trained token: nothing is learned from them",
    "groups": "groups in the step",
    "trajectories": "rollouts in the step",
    "unscored": "rollouts of the step whose score is missing; they are in no statistic and no loss",
    "discarded_rollouts": "rollouts sampled and then filtered out since the run began",
    "generated_tokens": "tokens sampled for training since the run began, discarded rollouts included",
    "length_mean": "mean number of action tokens per rollout",
    "truncated_rate": "share of rollouts cut at the length limit",
    "clip_fraction": "share of trainable tokens whose gradient the clip cuts, mean over the step's optimiser steps",
    "approx_kl": "mean of ratio - 1 - log ratio: how far the policy moved within the step, nats per token",
    "ratio_max": "largest ratio of current to proximal policy, mean over the step's optimiser steps",
    "on_policy": "share of the step's optimiser steps in which every ratio is exactly 1, so that no clip can bind",
    "kl": "mean estimated KL divergence from the reference, before its coefficient, nats per trained token",
    "entropy": "mean entropy of the policy at trained tokens, nats",
    "sampler_gap": "largest difference between the learner's and the sampler's log-prob of a token, nats",
    "loss": "value minimised, mean over the step's optimiser steps",
    "grad_norm": "length of the gradient before clipping, mean over the step's optimiser steps",
    "lr": "learning rate of the step",
    "optimiser_steps": "optimiser steps taken in the step",
    "empty_steps": "steps since the run began in which no coefficient differed from 0, so that nothing moved",
    "tokens_forward": "tokens through the learner's forward pass in the step",
    "unique_token_ratio": "tokens of the flattened rollouts per token of the forward pass",
    "weights_crc": "CRC-32 of the trained parameters after the step",
    "eval_accuracy": "mean verdict on the held-out tasks; what could not be scored counts as wrong",
    "eval_low": "lower end of the 95% interval of eval_accuracy over tasks",
    "eval_high": "upper end of the 95% interval of eval_accuracy over tasks",
    "eval_pass_at_K": "probability that one of K samples of a held-out task is right, unbiased",
    "eval_tasks": "held-out tasks evaluated",
    "eval_unscored": "evaluated completions whose score is missing",
    "eval_length": "mean number of tokens of the evaluated completions",
    "eval_NAME": "mean of the reward component NAME over the evaluated completions",
    "time_sample_s": "seconds of sampling",
    "time_score_s": "seconds of scoring",
    "time_update_s": "seconds of credit, gradients and optimiser",
    "time_step_s": "seconds of the whole step, evaluation and checkpoint not included",
    "time_eval_s": "seconds of the evaluation",
    "time_sample_tokens_per_s": "tokens sampled per second of sampling",
    "time_update_tokens_per_s": "tokens through the learner per second of updating",
    "memory_peak_mb": "largest resident memory of the process so far, MiB",
}


def meaning(name: str) -> str | None:
    """What a metric says (see `NAMES`, where K and NAME stand for a number and a reward's name); None if unknown."""
    if name in NAMES:
        return NAMES[name]
    for prefix, word in (("eval_pass_at_", "K"), ("eval_", "NAME"), ("reward_", "NAME")):
        if name.startswith(prefix) and len(name) > len(prefix):
            return NAMES[prefix + word].replace(word, name.removeprefix(prefix))
    return None


def comparable(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row without what depends on the clock or the machine: equal between equal runs."""
    return {k: v for k, v in row.items() if not k.startswith(("time_", "memory_"))}


class MetricsFile:
    """A file of flat JSON objects, a line each, that grows by whole lines."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def append(self, row: Mapping[str, Any]) -> None:
        """Add a line, keys in the order given; a number that is not finite becomes null, a nested value is refused."""
        line = json.dumps({k: _plain(k, v) for k, v in row.items()}, allow_nan=False).encode() + b"\n"
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            try:
                size = os.fstat(descriptor).st_size
                try:
                    rest = memoryview(line)
                    while rest:
                        rest = rest[os.write(descriptor, rest) :]
                    os.fsync(descriptor)  # no checkpoint may be on the disk before the lines of its steps
                except OSError:
                    os.ftruncate(descriptor, size)
                    raise
            finally:
                os.close(descriptor)
        except OSError as error:
            raise CheckpointError(
                f"{self.path} not written: {error.strerror}; free space or check its directory"
            ) from error

    def cut(self, step: int) -> int:
        """Drop the lines of steps after `step` and a torn last line, in one atomic write; gives how many went."""
        if not self.path.exists():
            return 0
        lines = self.path.read_bytes().splitlines(keepends=True)
        kept = [line for line, row in zip(lines, _rows(self.path, lines), strict=False) if row.get("step", 0) <= step]
        if len(kept) < len(lines):
            write_atomic(self.path, b"".join(kept))
        return len(lines) - len(kept)

    def read(self) -> list[dict[str, Any]]:
        """The rows, see `read`."""
        return read(self.path)


def read(path: str | Path) -> list[dict[str, Any]]:
    """The rows of a metrics file ([] where there is none yet), without a last line that has no end yet."""
    path = Path(path)
    return _rows(path, path.read_bytes().splitlines(keepends=True)) if path.exists() else []


def _rows(path: Path, lines: list[bytes]) -> list[dict[str, Any]]:
    if lines and not lines[-1].endswith(b"\n"):
        lines = lines[:-1]
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            raise RecordError(f"{path} line {number} is not a JSON object: restore the file or remove that line")
        rows.append(row)
    return rows


def _plain(name: str, value: Any) -> Value:
    if hasattr(value, "item") and getattr(value, "ndim", 1) == 0:  # a scalar of torch or numpy
        value = value.item()
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, int | str):
        return value
    raise RecordError(
        f"metric {name!r} is a {type(value).__name__}: a line of metrics holds numbers, strings and null only"
    )
