"""A run in trackio: its metrics under their names, samples as tables, its configuration."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from typing import Any

from gxpo.base.errors import need
from gxpo.training.callbacks.base import Callback, Row, Sample, numbers
from gxpo.training.callbacks.history import history
from gxpo.training.callbacks.samples import tables

_REMOTE = ("space_id", "server_url")


class Trackio(Callback):
    """Logs to trackio: to its local database (`trackio show` is the dashboard), a Space or a server.

    A resumed run goes on in the same trackio run. What the local database lacks of the steps up to the checkpoint is
    logged again, and what it has of later ones is kept: their figures are the same. A Space or server can't be asked,
    so there the steps behind the checkpoint are logged twice.
    """

    def __init__(self, **options: Any) -> None:
        """options: of `trackio.init`, such as space_id, group, auto_log_cpu."""
        self._trackio = need("trackio", "trackio")
        self._options = options
        self._run: Any = None
        self._known: dict[str, Any] = {}
        self._there: set[int] = set()
        self._tables: dict[str, Any] = {}

    def on_start(self, run: Any) -> None:
        config = run.config
        given = {
            "project": config["logging.project"] or os.environ.get("TRACKIO_PROJECT", "gxpo"),
            "config": {key: value for key, value in config.items() if value is not None},
            "embed": False,
        } | self._options
        local = not any(given.get(key) or os.environ.get(f"TRACKIO_{key.upper()}") for key in _REMOTE)
        name = self._known.get("name")
        if name is None:
            name = given.pop("name", None) or config["logging.name"] or run.path.name
            name = _free(name, self._names(given["project"])) if local else name
        given["name"] = name
        with redirect_stdout(sys.stderr):
            self._run = self._trackio.init(**given, resume="allow" if self._known else "never")
        self._there = self._stored(given["project"]) if local and self._known else set()
        self._known = {"name": name}
        for row, samples in history(run):
            if row["step"] not in self._there and local:
                self.on_samples(samples, run)
                self.on_step(row, run)

    def on_samples(self, samples: Sequence[Sample], run: Any) -> None:
        self._tables |= tables(samples, self._trackio.Table)

    def on_step(self, row: Row, run: Any) -> None:
        logged, self._tables = {**numbers(row), **self._tables}, {}
        if row["step"] not in self._there:
            self._run.log(logged, step=row["step"])

    def on_end(self, run: Any, error: BaseException | None) -> None:
        with redirect_stdout(sys.stderr):
            self._run.finish()

    def state_dict(self) -> dict[str, Any]:
        return self._known

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._known = state

    def _names(self, project: str) -> set[str]:
        """Of the runs that the local database has."""
        try:
            return {run.name for run in self._trackio.Api().runs(project)}
        except ValueError:  # there is no such project yet
            return set()

    def _stored(self, project: str) -> set[int]:
        """The steps that the local database has of this run."""
        storage = need("trackio.sqlite_storage", "trackio").SQLiteStorage
        return {int(log["step"]) for log in storage.get_logs(project, self._run.name, run_id=self._run.id)}


def _free(name: str, taken: set[str]) -> str:
    """`name`, or name-2, name-3..., which no run has yet: trackio finds a run to be resumed by its name."""
    return next(x for n in range(1, len(taken) + 2) if (x := name if n == 1 else f"{name}-{n}") not in taken)
