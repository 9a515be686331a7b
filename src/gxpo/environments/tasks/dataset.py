"""Tasks from a Hugging Face data set, or a local folder that `datasets` loads."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from gxpo.base.cells import cell
from gxpo.base.errors import TaskError, need
from gxpo.environments.tasks.listed import ListedTasks
from gxpo.environments.tasks.padding import unpadded_rows
from gxpo.environments.tasks.rows import COLUMNS, Columns, tasks_of
from gxpo.environments.tasks.source import check_options
from gxpo.parts.protocols import Task


@dataclass
class Dataset(ListedTasks):
    """Tasks from the rows of a data set.

    path              on the hub, or a local folder
    config            its configuration, where it has several
    split             of the training rows; `held_out` names the split of the held-out ones, else a share is held out
    """

    path: str
    seed: int = 0
    per_step: int = 32
    config: str | None = None
    split_name: str = "train"
    held_out_split: str | None = None
    held_out_fraction: float = 0.1
    columns: Columns = COLUMNS

    options: ClassVar[Mapping[str, Any]] = {
        "config": str,
        "split": str,
        "held_out": str,
        "held_out_fraction": float,
        **Columns.options,
    }

    @classmethod
    def make(cls, path: str, options: Mapping[str, Any], *, seed: int, per_step: int) -> Dataset:
        """Make the source from the options of a configuration, where `split` and `held_out` name splits."""
        check_options(f"dataset:{path}", options, cls.options)
        argument_names = {"split": "split_name", "held_out": "held_out_split"}
        columns, others = Columns.among(options)
        return cls(path, seed, per_step, columns=columns, **{argument_names.get(k, k): v for k, v in others.items()})

    def __post_init__(self) -> None:
        self.name = f"dataset:{self.path}"
        self.columns.check(self.name)
        held_out = None if self.held_out_split is None else self._tasks(self.held_out_split)
        self.split(self._tasks(self.split_name), held_out, self.held_out_fraction)

    def fingerprint(self) -> str:
        """SHA-256 of the tasks of both sides: rows of a hub or a folder may change between runs."""
        digest = hashlib.sha256()
        for task in (*self._training, None, *self._held_out):
            # without `info`, whose columns no answer is checked against; None separates the sides
            fields = task and Task(task.id, task.prompt, task.answer)
            digest.update(repr(fields).encode("utf-8", "surrogatepass"))
        return digest.hexdigest()

    def _tasks(self, split: str) -> list[Task]:
        # imported here: `datasets` takes seconds, and other sources don't need it
        datasets: Any = need("datasets", "hub")
        try:
            rows = unpadded_rows(datasets.load_dataset(self.path, self.config, split=split))
        except Exception as error:  # the hub, the network and a dozen file formats raise their own types here
            reason = " ".join(str(error).split())[:200]
            raise TaskError(f"task {self.name!r}: split {split!r} can't be loaded ({reason})") from error
        numbered_rows = (
            (
                f"task {self.name!r}: split {split!r}, row {i}",
                f"{self.path}/{split}/{i}",
                _row(row, self.columns.answer),
            )
            for i, row in enumerate(rows)
        )
        return tasks_of(numbered_rows, self.columns, f"task {self.name!r}: split {split!r}")


def _row(row: Mapping[str, Any], answer: str) -> dict[str, Any]:
    """Row without its `id` and with the answer stripped: the task gets the id of its place in the split."""
    cells = {k: v for k, v in row.items() if k != "id"}
    answer_value = cell(cells, answer)
    return cells | ({answer: answer_value.strip()} if isinstance(answer_value, str) and answer_value.strip() else {})
