"""Trackio logger: metrics under their own names, samples as tables, the configuration."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from typing import Any

from gxpo.base.errors import need
from gxpo.training.callbacks.base import Callback, Row, Sample, history, numbers
from gxpo.training.callbacks.samples import tables

_REMOTE = ("space_id", "server_url")


class Trackio(Callback):
    """Logger for trackio: to its local database (`trackio show` is the dashboard), a Space or a server.

    A resumed run continues the same trackio run. Steps up to the checkpoint that the local database lacks are logged
    again, and later steps that it has are kept: their figures are the same. A Space or server can't be read, so there
    the steps after the checkpoint are logged twice.
    """

    def __init__(self, **options: Any) -> None:
        """options: keywords of `trackio.init`, such as space_id, group, auto_log_cpu."""
        self._trackio = need("trackio", "trackio")
        self._options = options
        self._run: Any = None
        self._run_identity: dict[str, Any] = {}
        self._stored_steps: set[int] = set()
        self._tables: dict[str, Any] = {}

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
            self._run = self._trackio.init(**init_options, resume="allow" if self._run_identity else "never")
        self._stored_steps = (
            self._read_stored_steps(init_options["project"]) if is_local and self._run_identity else set()
        )
        self._run_identity = {"name": name}
        # Only a local database can be read, so only there is it known which steps it lacks.
        for row, samples in history(run):
            if row["step"] not in self._stored_steps and is_local:
                self.on_samples(samples, run)
                self.on_step(row, run)

    def on_samples(self, samples: Sequence[Sample], run: Any) -> None:
        self._tables |= tables(samples, self._trackio.Table)

    def on_step(self, row: Row, run: Any) -> None:
        figures, self._tables = {**numbers(row), **self._tables}, {}
        if row["step"] not in self._stored_steps:
            self._run.log(figures, step=row["step"])

    def on_end(self, run: Any, error: BaseException | None) -> None:
        with redirect_stdout(sys.stderr):
            self._run.finish()

    def state_dict(self) -> dict[str, Any]:
        return self._run_identity

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._run_identity = state

    def _run_names(self, project: str) -> set[str]:
        """Return the names of the project's runs in the local database."""
        try:
            return {run.name for run in self._trackio.Api().runs(project)}
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
