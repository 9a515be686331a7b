"""The parts by the names that configurations use: a part's name is its class's, in lower case with underscores.

A part is a public frozen dataclass of its stage's folder; it needs no entry anywhere else.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
from collections.abc import Callable
from types import ModuleType

from gxpo import credit, learners, objectives, rewards, rollouts, signals, weighting
from gxpo.credit.base import CreditPart, CreditSum
from gxpo.keys import show
from gxpo.objectives.base import TermPart, TermSum
from gxpo.objectives.gate import Gate
from gxpo.rewards.base import RewardPart
from gxpo.signals.base import SignalPart
from gxpo.weighting.base import WeightPart, WeightProduct

_COMBINATIONS = (CreditSum, TermSum, WeightProduct)


def _parts(folder: ModuleType, is_part: Callable[[type], bool]) -> dict[str, type]:
    """Every part that a module of the folder defines."""
    found: dict[str, type] = {}
    for module in sorted(m.name for m in pkgutil.iter_modules(folder.__path__)):
        loaded = importlib.import_module(f"{folder.__name__}.{module}")
        for name, kind in inspect.getmembers(loaded, inspect.isclass):
            own = kind.__module__ == loaded.__name__ and not name.startswith("_") and kind not in _COMBINATIONS
            if not (own and is_part(kind) and dataclasses.is_dataclass(kind)):
                continue
            if show(kind) in found:
                raise ValueError(f"{folder.__name__} has two parts named {show(kind)!r}")
            found[show(kind)] = kind
    return found


def _derives(base: type) -> Callable[[type], bool]:
    return lambda kind: issubclass(kind, base)


def _has(method: str) -> Callable[[type], bool]:
    return lambda kind: callable(getattr(kind, method, None))


CREDITS = _parts(credit, _derives(CreditPart))
WEIGHTS = _parts(weighting, _derives(WeightPart))
ROLLOUTS = _parts(rollouts, _has("grow"))
REWARDS = _parts(rewards, _derives(RewardPart))
SIGNALS = _parts(signals, _derives(SignalPart))
GATES = _parts(objectives, _derives(Gate))
TERMS = _parts(objectives, _derives(TermPart))
UPDATES = _parts(learners, _has("run"))
