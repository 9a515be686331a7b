"""Errors with one-line messages: what was wrong, where, and what to change."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from gxpo.base.terminal import escaped


class GxpoError(Exception):
    """Base of every error that gxpo raises on purpose; the command line prints it in one line and exits with 2.

    Messages quote what others wrote, so they are escaped for terminals.
    """

    def __str__(self) -> str:
        return escaped(Exception.__str__(self))


class ConfigError(GxpoError):
    """A setting is unknown, has the wrong type or contradicts another."""


class NoVerdicts(ConfigError):
    """`reader` needs to know which rollouts are correct, and the reward does not give verdicts."""

    def __init__(self, reader: str, message: str | None = None) -> None:
        default_message = (
            f"{reader} needs verdicts, but the reward gives none: let it return {{'correct': 0 or 1, ...}}"
        )
        super().__init__(default_message if message is None else message)
        self.reader = reader


class NoComponent(ConfigError):
    """A part reads the named reward `name`, which no reward gives."""

    def __init__(self, asker: str, name: str, component_names: Iterable[str]) -> None:
        super().__init__(
            f"{asker} reads component {name!r}, which no reward computes: let one return it, and give it weight 0 "
            f"(there is {', '.join(component_names) or 'none'})"
        )
        self.name = name


class MethodConflict(ConfigError):
    """Two composed methods give different values to one key."""


class MissingSignal(GxpoError, KeyError):
    """A part needs a signal (reference log-probs, entropy, ...) that was not provided."""

    __str__ = GxpoError.__str__  # KeyError would quote the message


class RecordError(GxpoError):
    """A rollout record is malformed; names the line and the field."""


class PictureError(GxpoError):
    """A picture can't be read, is too large, or is none."""


class MissingExtra(GxpoError):
    """An optional dependency is not installed; names the extra that installs it."""


class CheckpointError(GxpoError):
    """A checkpoint can't be written or is damaged."""


class TaskError(GxpoError):
    """Tasks can't be loaded or drawn."""


class ModelError(GxpoError):
    """A model can't be loaded or does not support what was requested."""


class SamplersLost(ModelError):
    """Too few servers can sample: the run stops where it is, and can be resumed."""


def did_you_mean(word: str, candidates: Iterable[object]) -> str:
    """`"; did you mean 'x'?"` for the closest of `known`, or `""` when nothing is close."""
    from rapidfuzz import fuzz, process

    matches = process.extract(word, [str(k) for k in candidates], score_cutoff=60, limit=None)
    near = [name for name, score, _ in matches if score >= matches[0][1] - 15]  # of these the likest as a whole
    return f"; did you mean {max(near, key=lambda name: fuzz.ratio(word, name))!r}?" if near else ""


def one_of(key: str, value: str, choices: Sequence[str]) -> None:
    """Raise an error for a setting that is not one of `choices`."""
    if value not in choices:
        raise ConfigError(f"{key} is {value!r}; it is one of {', '.join(choices)}")


def need(module: str, extra: str) -> Any:
    """Import `module`, or say which extra of gxpo installs it; `MissingExtra` also where it is installed and broken."""
    import importlib.util

    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        # installed and broken (a missing library of the system) needs another remedy than not installed
        absent = importlib.util.find_spec(package) is None
        problem = f"{package} is not installed" if absent else f"{module} can't be imported"
        raise MissingExtra(f"{problem}: pip install 'gxpo[{extra}]' ({error})") from error
