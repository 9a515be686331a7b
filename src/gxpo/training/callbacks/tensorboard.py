"""A run in TensorBoard: its metrics under their names, rollouts and configuration as texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gxpo.base.errors import need
from gxpo.training.callbacks.base import Callback, Row, Sample, numbers


class TensorBoard(Callback):
    """Writes event files to RUN/tensorboard; `tensorboard --logdir runs` shows all runs.

    After a resume the steps behind the checkpoint are written again, and TensorBoard drops what stood there.
    """

    def __init__(self, **options: Any) -> None:
        """options: of `torch.utils.tensorboard.SummaryWriter`, such as flush_secs."""
        need("tensorboard", "tensorboard")
        self._options = options
        self._writer: Any = None

    def on_start(self, run: Any) -> None:
        from torch.utils.tensorboard import SummaryWriter

        purge = {"purge_step": run.step + 1} if run.resumed else {}
        self._writer = SummaryWriter(str(run.path / "tensorboard"), **purge, **self._options)
        if not run.resumed:
            self._writer.add_text("config", _table(("key", "value"), run.config.items()), 0)

    def on_step(self, row: Row, run: Any) -> None:
        for name, value in numbers(row).items():
            self._writer.add_scalar(tag(name), value, row["step"])
        self._writer.flush()  # before the step's checkpoint: what a resumed run goes on from is on the disk

    def on_samples(self, samples: Sequence[Sample], run: Any) -> None:
        for name in dict.fromkeys(sample["set"] for sample in samples):
            own = [sample for sample in samples if sample["set"] == name]
            columns = [column for column in own[0] if column not in ("step", "set")]
            text = _table(columns, ([sample[column] for column in columns] for sample in own))
            self._writer.add_text(f"samples/{name}", text, own[0]["step"])

    def on_end(self, run: Any, error: BaseException | None) -> None:
        self._writer.close()


GROUPS = (  # TensorBoard folds up what stands before the "/"; what stands behind it is the metric's name, untouched
    ("eval", ("eval_",)),
    ("time", ("time_", "memory_")),
    ("rollouts", ("reward_", "success_", "zero_signal_", "groups", "trajectories", "unscored", "scoring_", "length_",
                  "truncated_", "turns_", "malformed_", "illegal_", "cut_action_", "turn_limit_", "context_limit_",
                  "env_", "origin_", "summaries", "untagged_", "discarded_")),
    ("tokens", ("generated_tokens", "judge_tokens", "prefilled_tokens", "reused_tokens", "tokens_forward",
                "unique_token_ratio", "cost")),
)  # fmt: skip


def tag(name: str) -> str:
    """TensorBoard's tag of a metric: its name, behind what it is a figure of.

    >>> tag("zero_signal_groups"), tag("eval_accuracy"), tag("clip_fraction")
    ('rollouts/zero_signal_groups', 'eval/eval_accuracy', 'update/clip_fraction')
    """
    group = next((group for group, begins in GROUPS if name.startswith(begins)), "update")
    return f"{group}/{name}"


def _table(columns: Sequence[str], rows: Any) -> str:
    """A table in Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(_cell(value) for value in line) + " |" for line in lines)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    for mark in "\\|`*_<>[]":
        text = text.replace(mark, f"\\{mark}" if mark not in "<>" else {"<": "&lt;", ">": "&gt;"}[mark])
    return text.replace("\n", "<br>")
