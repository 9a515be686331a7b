"""Loggers for W&B, Trackio and TensorBoard: metrics under their own names, samples, the configuration."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from typing import Any

from gxpo.base.errors import need
from gxpo.training.callbacks.base import Callback, Row, Sample, history, numbers
from gxpo.training.callbacks.samples import tables


class _TableLogger(Callback):
    """Base of loggers that take samples as tables, and that a resumed run continues under its recorded identity."""

    def __init__(self, package: str, options: dict[str, Any]) -> None:
        self._package = need(package, package)
        self._options = options
        self._run: Any = None
        self._run_identity: dict[str, Any] = {}
        self._tables: dict[str, Any] = {}

    def on_samples(self, samples: Sequence[Sample], run: Any) -> None:
        self._tables |= tables(samples, self._package.Table)

    def _figures(self, row: Row) -> dict[str, Any]:
        """Figures of a step, with the tables that wait for one."""
        figures, self._tables = {**numbers(row), **self._tables}, {}
        return figures

    def state_dict(self) -> dict[str, Any]:
        return self._run_identity

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._run_identity = state


class Wandb(_TableLogger):
    """Logger for wandb; with WANDB_MODE=offline it writes to RUN/wandb without a network.

    An active wandb run (of a sweep, or the user's own `wandb.init`) is logged to and left open. A resumed run keeps its
    wandb id, and steps up to the checkpoint that the server lacks are sent again. Offline, the new directory holds the
    whole run: `wandb sync` of the last one is enough.
    """

    def __init__(self, **options: Any) -> None:
        """options: keywords of `wandb.init`, such as entity, group, tags, mode."""
        super().__init__("wandb", options)
        self._owns_run = True

    def on_start(self, run: Any) -> None:
        config = run.config
        self._owns_run = self._package.run is None
        if self._owns_run:
            init_options = {
                "project": config["logging.project"] or os.environ.get("WANDB_PROJECT", "gxpo"),
                "name": config["logging.name"] or os.environ.get("WANDB_NAME", run.path.name),
                "dir": str(run.path),
                "config": {key: value for key, value in config.items() if value is not None},
            }
            # The identity last: the id of a resumed run wins over options that name another.
            init_options |= self._options | self._run_identity
            # wandb prints to stdout, which belongs to the output of the command.
            with redirect_stdout(sys.stderr):
                self._run = self._package.init(**init_options, resume="allow")
            self._run_identity = {"id": self._run.id, "project": self._run.project}
        else:
            self._run = self._package.run
            self._run.config.update(config, allow_val_change=True)
        first_missing_step = self._run.step  # 0 offline, where nothing of an earlier directory can be read
        for row, samples in history(run):
            if row["step"] >= first_missing_step:
                self.on_samples(samples, run)
                self.on_step(row, run)

    def on_step(self, row: Row, run: Any) -> None:
        figures = self._figures(row)
        if self._owns_run and row["step"] < self._run.step:
            return  # the run was killed after this step: the server has it, and its figures are the same
        if self._owns_run:
            self._run.log(figures, step=row["step"], commit=True)
        else:  # the owner of the wandb run counts its steps
            self._run.log({"step": row["step"], **figures}, commit=True)

    def on_end(self, run: Any, error: BaseException | None) -> None:
        if self._owns_run:
            with redirect_stdout(sys.stderr):
                self._run.finish(exit_code=0 if error is None else 1)


_REMOTE = ("space_id", "server_url")


class Trackio(_TableLogger):
    """Logger for trackio: to its local database (`trackio show` is the dashboard), a Space or a server.

    A resumed run continues the same trackio run. Steps up to the checkpoint that the local database lacks are logged
    again, and later steps that it has are kept: their figures are the same. A Space or server can't be read, so there
    the steps after the checkpoint are logged twice.
    """

    def __init__(self, **options: Any) -> None:
        """options: keywords of `trackio.init`, such as space_id, group, auto_log_cpu."""
        super().__init__("trackio", options)
        self._stored_steps: set[int] = set()

    def on_start(self, run: Any) -> None:
        config = run.config
        init_options = {
            "project": config["logging.project"] or os.environ.get("TRACKIO_PROJECT", "gxpo"),
            "config": {key: value for key, value in config.items() if value is not None},
            "embed": False,
        } | self._options
        is_local = not any(init_options.get(key) or os.environ.get(f"TRACKIO_{key.upper()}") for key in _REMOTE)
        # trackio resumes by name, so a new run needs a name that no other run of the project has.
        name = self._run_identity.get("name")
        if name is None:
            name = init_options.pop("name", None) or config["logging.name"] or run.path.name
            name = _unused_name(name, self._run_names(init_options["project"])) if is_local else name
        init_options["name"] = name
        # trackio prints to stdout, which belongs to the output of the command.
        with redirect_stdout(sys.stderr):
            self._run = self._package.init(**init_options, resume="allow" if self._run_identity else "never")
        self._stored_steps = (
            self._read_stored_steps(init_options["project"]) if is_local and self._run_identity else set()
        )
        self._run_identity = {"name": name}
        # Only a local database can be read, so only there is it known which steps it lacks.
        for row, samples in history(run):
            if row["step"] not in self._stored_steps and is_local:
                self.on_samples(samples, run)
                self.on_step(row, run)

    def on_step(self, row: Row, run: Any) -> None:
        figures = self._figures(row)
        if row["step"] not in self._stored_steps:
            self._run.log(figures, step=row["step"])

    def on_end(self, run: Any, error: BaseException | None) -> None:
        with redirect_stdout(sys.stderr):
            self._run.finish()

    def _run_names(self, project: str) -> set[str]:
        """Return the names of the project's runs in the local database."""
        try:
            return {run.name for run in self._package.Api().runs(project)}
        except ValueError:  # there is no such project yet
            return set()

    def _read_stored_steps(self, project: str) -> set[int]:
        """Return the steps of this run that the local database has."""
        storage = need("trackio.sqlite_storage", "trackio").SQLiteStorage
        return {int(log["step"]) for log in storage.get_logs(project, self._run.name, run_id=self._run.id)}


def _unused_name(name: str, existing_names: set[str]) -> str:
    """Return `name`, or the first of name-2, name-3... that no run has: trackio finds a run to resume by its name."""
    return next(
        x for n in range(1, len(existing_names) + 2) if (x := name if n == 1 else f"{name}-{n}") not in existing_names
    )


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
