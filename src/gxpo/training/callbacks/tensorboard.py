"""TensorBoard logger: metrics under their own names, rollouts and the configuration as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gxpo.base.errors import need
from gxpo.training.callbacks.base import Callback, Row, Sample, numbers


class TensorBoard(Callback):
    """Logger that writes event files to RUN/tensorboard; `tensorboard --logdir runs` shows all runs.

    After a resume the steps after the checkpoint are written again, and TensorBoard drops the earlier ones.
    """

    def __init__(self, **options: Any) -> None:
        """options: keywords of `torch.utils.tensorboard.SummaryWriter`, such as flush_secs."""
        need("tensorboard", "tensorboard")
        self._options = options
        self._writer: Any = None

    def on_start(self, run: Any) -> None:
        from torch.utils.tensorboard import SummaryWriter

        resume_options = {"purge_step": run.step + 1} if run.resumed else {}
        self._writer = SummaryWriter(str(run.path / "tensorboard"), **resume_options, **self._options)
        if not run.resumed:
            self._writer.add_text("config", _markdown_table(("key", "value"), run.config.items()), 0)

    def on_step(self, row: Row, run: Any) -> None:
        for name, value in numbers(row).items():
            self._writer.add_scalar(tag(name), value, row["step"])
        self._writer.flush()  # before the step's checkpoint: what a resumed run goes on from is on the disk

    def on_samples(self, samples: Sequence[Sample], run: Any) -> None:
        for name in dict.fromkeys(sample["set"] for sample in samples):
            set_samples = [sample for sample in samples if sample["set"] == name]
            columns = [column for column in set_samples[0] if column not in ("step", "set")]
            text = _markdown_table(columns, ([sample[column] for column in columns] for sample in set_samples))
            self._writer.add_text(f"samples/{name}", text, set_samples[0]["step"])

    def on_end(self, run: Any, error: BaseException | None) -> None:
        self._writer.close()


GROUPS = (  # TensorBoard folds tags by the part before the "/"; the part behind it is the metric's name, unchanged
    ("eval", ("eval_",)),
    ("time", ("time_", "memory_")),
    ("rollouts", ("reward_", "success_", "zero_signal_", "groups", "trajectories", "unscored", "scoring_", "length_",
                  "truncated_", "turns_", "malformed_", "illegal_", "cut_action_", "turn_limit_", "context_limit_",
                  "env_", "origin_", "summaries", "untagged_", "discarded_")),
    ("tokens", ("generated_tokens", "judge_tokens", "prefilled_tokens", "reused_tokens", "tokens_forward",
                "unique_token_ratio", "cost")),
)  # fmt: skip


def tag(name: str) -> str:
    """Return the TensorBoard tag of a metric: its group, a slash, its name.

    >>> tag("zero_signal_groups"), tag("eval_accuracy"), tag("clip_fraction")
    ('rollouts/zero_signal_groups', 'eval/eval_accuracy', 'update/clip_fraction')
    """
    group = next((group for group, prefixes in GROUPS if name.startswith(prefixes)), "update")
    return f"{group}/{name}"


def _markdown_table(columns: Sequence[str], rows: Any) -> str:
    """Format a table in Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(_markdown_cell(value) for value in line) + " |" for line in lines)


def _markdown_cell(value: Any) -> str:
    """Format a cell; Markdown in texts of rollouts is escaped, so that it is shown as written."""
    if value is None:
        return ""
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    for mark in "\\|`*_<>[]":
        text = text.replace(mark, f"\\{mark}" if mark not in "<>" else {"<": "&lt;", ">": "&gt;"}[mark])
    return text.replace("\n", "<br>")
