"""Questions and answers from a Hugging Face data set, or a local folder that `datasets` loads."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from gxpo.errors import TaskError, did_you_mean, need
from gxpo.protocols import Task
from gxpo.tasks.listed import ListedTasks
from gxpo.tasks.source import check_options


@dataclass
class Dataset(ListedTasks):
    """Tasks from the rows of a data set.

    path              on the hub, or a local folder
    config            its configuration, where it has several
    split             training rows; `held_out` names the split of the held-out ones, without it a share is held out
    prompt, answer    columns; the prompt's may hold messages
    answer_after      the answer is the text after this mark in its column (GSM8K: "####")
    template          text of the prompt; must hold {prompt}
    """

    path: str
    seed: int = 0
    per_step: int = 32
    config: str | None = None
    split_name: str = "train"
    held_out_split: str | None = None
    held_out_fraction: float = 0.1
    prompt: str = "prompt"
    answer: str = "answer"
    answer_after: str = ""
    template: str = "{prompt}"

    options: ClassVar[Mapping[str, Any]] = {
        "config": str,
        "split": str,
        "held_out": str,
        "held_out_fraction": float,
        "prompt": str,
        "answer": str,
        "answer_after": str,
        "template": str,
    }

    @classmethod
    def make(cls, path: str, options: Mapping[str, Any], *, seed: int, per_step: int) -> Dataset:
        """Make the source from the options of a configuration, where `split` and `held_out` name splits."""
        check_options(f"dataset:{path}", options, cls.options)
        renamed = {"split": "split_name", "held_out": "held_out_split"}
        return cls(path, seed, per_step, **{renamed.get(k, k): v for k, v in options.items()})

    def __post_init__(self) -> None:
        self.name = f"dataset:{self.path}"
        if "{prompt}" not in self.template:
            raise TaskError(f"task {self.name!r}: template must contain {{prompt}}, not {self.template!r}")
        held_out = None if self.held_out_split is None else self._tasks(self.held_out_split)
        self.split(self._tasks(self.split_name), held_out, self.held_out_fraction)

    def fingerprint(self) -> str:
        """SHA-256 of every task on both sides: rows of a hub or a folder may change."""
        digest = hashlib.sha256()
        for task in (*self._training, None, *self._held_out):
            digest.update(repr(task).encode("utf-8", "surrogatepass"))
        return digest.hexdigest()

    def _tasks(self, split: str) -> list[Task]:
        datasets: Any = need("datasets", "hub")
        try:
            rows = datasets.load_dataset(self.path, self.config, split=split)
        except Exception as error:  # the hub, the network and a dozen file formats raise their own types here
            reason = " ".join(str(error).split())[:200]
            raise TaskError(f"task {self.name!r}: split {split!r} can't be loaded ({reason})") from error
        for column in (self.prompt, self.answer):
            if column not in rows.column_names:
                hint = did_you_mean(column, rows.column_names) or f"; there are {', '.join(rows.column_names)}"
                raise TaskError(f"task {self.name!r}: split {split!r} has no column {column!r}{hint}")
        return [self._task(f"{self.path}/{split}/{i}", row) for i, row in enumerate(rows)]

    def _task(self, name: str, row: Mapping[str, Any]) -> Task:
        asked, answer = row[self.prompt], str(row[self.answer])
        if self.answer_after:
            _, mark, answer = answer.rpartition(self.answer_after)
            if not mark:
                raise TaskError(f"task {name}: its {self.answer!r} has no {self.answer_after!r} in it")
        if isinstance(asked, str):
            return Task(name, self.template.replace("{prompt}", asked), answer.strip())
        return Task(name, tuple(asked), answer.strip())
