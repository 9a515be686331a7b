"""Callbacks by their names in a configuration: `tensorboard`, `trackio`, `wandb`, or `file.py:Class`."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from gxpo.base.errors import ConfigError, did_you_mean
from gxpo.base.usercode import NotRun, Unusable, described, object_at

LOGGERS = {
    "tensorboard": "gxpo.training.callbacks.tensorboard:TensorBoard",
    "trackio": "gxpo.training.callbacks.trackio:Trackio",
    "wandb": "gxpo.training.callbacks.wandb:Wandb",
}


def make(names: Sequence[str], options: Mapping[str, Mapping[str, Any]] | None = None) -> dict[str, Any]:
    """The callbacks of `trainer.callbacks` by their names, made with their `logging.options`.

    ConfigError for one that does not exist or can't be made; MissingExtra where a logger's package is not installed.
    """
    options = options or {}
    if unknown := [name for name in options if name not in names]:
        raise ConfigError(f"logging.options.{unknown[0]}: {unknown[0]} is not in trainer.callbacks")
    return {name: _made(name, dict(options.get(name, {}))) for name in names}


def check(names: Sequence[str], options: Mapping[str, Mapping[str, Any]] | None = None) -> None:
    """`make`, inside `usercode.unexecuted`, too: of a user's file it is only seen that it defines the name."""
    for name in names:
        try:
            make([name], {k: v for k, v in (options or {}).items() if k == name})
        except NotRun:
            continue


def _made(name: str, options: dict[str, Any]) -> Any:
    if name in LOGGERS:
        module, _, class_name = LOGGERS[name].partition(":")
        kind = getattr(importlib.import_module(module), class_name)
    elif ":" not in name:
        raise ConfigError(
            f"trainer.callbacks: no logger {name!r}{did_you_mean(name, LOGGERS)} "
            f"({', '.join(LOGGERS)}, or file.py:Class)"
        )
    else:
        try:
            kind = object_at(name)
        except Unusable as error:
            raise ConfigError(f"trainer.callbacks: {error}") from error
    try:
        return kind(**options)
    except TypeError as error:
        at = f"logging.options.{name}" if options else f"trainer.callbacks: {name}"
        raise ConfigError(f"{at}: {described(error)}") from error
