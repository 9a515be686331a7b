"""Names of the settings that a user gave to a GRPOConfig, as against those that stayed at TRL's defaults.

A value equal to TRL's default says nothing by itself, so the names are noted where a configuration is made:
`GRPOConfig.__new__` sees the arguments of every call, also of a subclass. A parser (`TrlParser`) and
`dataclasses.replace` pass every field, which states none of them: of such a call the names on the command line count.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable
from typing import Any

NOTE = "_gxpo_stated"  # attribute of a configuration: the names


def watch(config_class: Any) -> None:
    """Note the arguments of every configuration of this class that is made from here on; once is enough."""
    if "__new__" in vars(config_class):
        return

    def noting(cls: Any, *values: Any, **named: Any) -> Any:
        config = object.__new__(cls)
        names = [f.name for f in dataclasses.fields(cls) if f.init]
        if values or named:  # a copy is made without arguments, and brings the note of the original
            vars(config)[NOTE] = frozenset(chosen_names((*names[: len(values)], *named), names))
        return config

    config_class.__new__ = staticmethod(noting)


def chosen_names(arguments: Iterable[str], fields: Iterable[str]) -> set[str]:
    """Arguments that a user chose: all of them, or of a call that passes every field those on the command line."""
    names = set(arguments)
    return names & on_command_line(sys.argv[1:]) if names >= set(fields) else names


def on_command_line(words: Iterable[str]) -> set[str]:
    """Names of the options among the words: `--scale_rewards group`, `--scale-rewards=group`."""
    options = (word for word in words if word.startswith("--"))
    return {word.removeprefix("--").partition("=")[0].replace("-", "_") for word in options}


def stated_names(args: Any) -> set[str]:
    """Settings that differ from TRL's defaults, and those that were given though they do not; None leaves one out."""
    defaults = {f.name: f.default for f in dataclasses.fields(args)}
    noted = vars(args).get(NOTE, frozenset())
    values = {name: getattr(args, name) for name in defaults}
    return {n for n, v in values.items() if v != defaults[n] or (n in noted and v is not None)}
