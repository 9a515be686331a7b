"""Python objects given to `gxpo.train`, written into the run directory for `resume`, `eval` and `export`."""

from __future__ import annotations

import shutil
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gxpo.base.errors import ConfigError
from gxpo.environments.rewards.rubric import is_rubric
from gxpo.environments.rewards.spec import with_weights
from gxpo.environments.tasks.in_memory import json_lines
from gxpo.environments.tasks.rows import Columns
from gxpo.environments.tasks.user_source import is_source
from gxpo.models.cache import put
from gxpo.models.objects import ModelObject
from gxpo.parts.definition import SettingValue
from gxpo.parts.settings import RunSettings
from gxpo.training import source_text
from gxpo.training.checkpoint import write_atomic
from gxpo.training.directory import PYTHON_INPUTS

MODEL, TASKS, HELD_OUT, REWARDS, SOURCE = PYTHON_INPUTS


@dataclass
class Objects:
    """Python objects of a run, and the files that hold them.

    source  a task source, or what makes one, where the configuration names a Python object
    reward  the rewards as they were given (functions, rubrics, names, with weights), where it does not name them all
    """

    source: Any = None
    reward: Any = None
    _model: ModelObject | None = None
    _model_ref: weakref.ref[Any] | None = None
    _texts: dict[str, str] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        """True if there are no files to write."""
        return self._model is None and not self._texts

    def write(self, out: Path) -> None:
        """Write the files into a run directory, each whole or not at all."""
        for name, text in self._texts.items():
            write_atomic(out / name, text)
        model = self._model or (self._model_ref and self._model_ref())
        if model is not None:
            if (out / MODEL).exists():
                shutil.rmtree(out / MODEL)
            put(out / MODEL, model.save)
            self._model = None  # the run reads the files: the object is the caller's alone again

    def remove(self, out: Path) -> None:
        """Remove the files of a run that has not begun."""
        for name in self._texts:
            (out / name).unlink(missing_ok=True)
        shutil.rmtree(out / MODEL, ignore_errors=True)
        (out / ".lock").unlink(missing_ok=True)
        if not any(out.iterdir()):
            out.rmdir()


class Arguments:
    """`model`, `tokenizer`, `task`, `eval_task` and `reward` of `gxpo.train`, objects or names."""

    def __init__(self, model: Any, tokenizer: Any, task: Any, eval_task: Any, reward: Any) -> None:
        self.model = ModelObject.of(model, tokenizer)
        self.model_name = None if self.model is not None or model is None else str(model)
        self.task, self.eval_task, self.reward = task, eval_task, reward
        for name, value in (("task", task), ("eval_task", eval_task)):
            if isinstance(value, Path):
                setattr(self, name, str(value))
        if eval_task is not None and (is_source(task) or callable(task)):
            raise ConfigError("eval_task: a task source brings its own held_out(n): leave eval_task out")

    @property
    def label(self) -> str | None:
        """Name of a run directory after tasks that are objects; None for tasks by name."""
        if self.task is None or isinstance(self.task, str):
            return None
        return _name_of(self.task) if self._is_source else "tasks"

    @property
    def has_objects(self) -> bool:
        """True if any argument is an object and not a name."""
        objects = (x for x in (self.task, self.eval_task) if x is not None and not isinstance(x, str))
        return self.model is not None or any(True for _ in objects) or self._has_objects

    @property
    def _is_source(self) -> bool:
        return is_source(self.task) or callable(self.task)

    def keys(self, out: Path) -> dict[str, SettingValue]:
        """The configuration: names as they are, objects by the files that they are going to be in."""
        keys: dict[str, SettingValue] = {}
        if self.model is not None:
            keys["model"] = SettingValue(str(out / MODEL), self.model.description)
            # The model's own dtype, or loading it would convert it.
            keys["learner.dtype"] = SettingValue(self.model.dtype, "the model's")
        elif self.model_name is not None:
            keys["model"] = SettingValue(self.model_name, "argument")
        if self.task is not None:
            keys["task"] = self._task_key(out)
        if self.eval_task is not None:
            objects = not isinstance(self.eval_task, str)
            # An object has no name: the file that it will be written to stands for it.
            value = str(out / HELD_OUT) if objects else self.eval_task
            keys["tasks.options.held_out"] = SettingValue(value, "argument")
        if self.reward is not None:
            key = "reward" if self._one_reward else "scoring.weights"
            keys[key] = SettingValue(self._reward_value(out), "argument")
        return keys

    def collect_objects(self, settings: RunSettings) -> Objects:
        """Collect the objects and the texts of their files; raises for rows that are no tasks."""
        columns, _ = Columns.among(settings.tasks.options)
        texts: dict[str, str] = {}
        for name, label, rows in ((TASKS, "task", self.task), (HELD_OUT, "eval_task", self.eval_task)):
            if rows is not None and not isinstance(rows, str) and not (label == "task" and self._is_source):
                texts[name] = json_lines(rows, columns, label)
        if (text := self._rewards_text) is not None:
            texts[REWARDS] = text
        source = None
        if self._is_source and source_text.file_name(self.task) is None:
            if (text := source_text.module_text([self.task])) is not None:
                texts[SOURCE] = text
            else:
                source = self.task
        # Objects that a file can bring back are not held in memory.
        objects = Objects(source, None if self._names_suffice else self.reward, self.model, None, texts)
        objects._model_ref = None if self.model is None else weakref.ref(self.model)
        return objects

    # ------------------------------------------------------------ tasks
    def _task_key(self, out: Path) -> SettingValue:
        if isinstance(self.task, str):
            return SettingValue(self.task, "argument")
        if not self._is_source:
            return SettingValue(str(out / TASKS), "argument")
        if (name := source_text.file_name(self.task)) is not None:
            return SettingValue(name, "argument")
        if source_text.module_text([self.task]) is not None:
            return SettingValue(f"{out / SOURCE}:{self.task.__name__}", "argument")
        return SettingValue(f"python:{_name_of(self.task)}", "argument")

    # ------------------------------------------------------------ rewards
    @property
    def _one_reward(self) -> bool:
        return not isinstance(self.reward, (Mapping, list, tuple))

    @property
    def _rewards(self) -> dict[Any, float]:
        """Rewards with their weights."""
        if self._one_reward:
            return {} if self.reward is None else {self.reward: 1.0}
        return dict(self.reward) if isinstance(self.reward, Mapping) else with_weights(self.reward)

    @property
    def _has_objects(self) -> bool:
        return any(not isinstance(x, str) for x in self._rewards)

    @property
    def _names_suffice(self) -> bool:
        """True if the configuration alone can load all rewards: then a run uses them so from the start."""
        has_text = self._rewards_text is not None
        return all(isinstance(x, str) or has_text or source_text.file_name(x) is not None for x in self._rewards)

    @property
    def _rewards_text(self) -> str | None:
        """Source of a module with the rewards that have no file; None without any, or if it can't be written."""
        local_objects = [x for x in self._rewards if not isinstance(x, str) and source_text.file_name(x) is None]
        return source_text.module_text(local_objects) if local_objects else None

    def _reward_value(self, out: Path) -> Any:
        has_text = self._rewards_text is not None
        names: dict[str, float] = {}
        for reward, weight in self._rewards.items():
            if not (isinstance(reward, str) or callable(reward) or is_rubric(reward)):
                raise ConfigError(f"reward: {reward!r} is neither a function nor a name nor a rubric of verifiers")
            name = reward if isinstance(reward, str) else source_text.file_name(reward)
            if name is None:
                # A function without source has a name that says so: resume asks for it again.
                name = f"{out / REWARDS}:{_name_of(reward)}" if has_text else f"python:{_name_of(reward)}"
            if name in names:
                raise ConfigError(f"reward: two are named {name.rpartition(':')[2]!r}; rename one")
            names[name] = weight
        return next(iter(names)) if self._one_reward else names


def _name_of(value: Any) -> str:
    return getattr(value, "__name__", type(value).__name__).strip("<>")
