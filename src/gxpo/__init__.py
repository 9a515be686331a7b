"""gxpo: group-relative policy optimisation; every method a short composition of checked parts.

forest = gxpo.Forest.from_records(records)
m = gxpo.method("gigpo+gspo")
forest = m.shaped(forest)  # with rewards of the method's own, where it has any
advantages = m.advantages(forest)
loss = m.loss(forest, gxpo.PolicyTokens(logprob, behaviour_logprob), advantages=advantages)
run = gxpo.train(model="tiny", task="arithmetic", method="grpo", steps=50)
run = gxpo.train(model, [{"prompt": ..., "answer": ...}], reward=function, steps=50, tokenizer=tokenizer)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gxpo.algorithms import credit, objectives, weighting
    from gxpo.base import errors
    from gxpo.forest import grouped, records
    from gxpo.forest.forest import Forest
    from gxpo.methods.compose import method
    from gxpo.methods.method import Method
    from gxpo.parts.protocols import PolicyTokens, Task, TimeStep
    from gxpo.training import callbacks, config
    from gxpo.training.loop import Trainer
    from gxpo.training.run import Run
    from gxpo.training.train import resume, train
    from gxpo.version import __version__ as __version__

_HOMES = {
    "Forest": "gxpo.forest.forest",
    "Method": "gxpo.methods.method",
    "method": "gxpo.methods.compose",
    "PolicyTokens": "gxpo.parts.protocols",
    "Task": "gxpo.parts.protocols",
    "TimeStep": "gxpo.parts.protocols",
    "Trainer": "gxpo.training.loop",
    "Run": "gxpo.training.run",
    "resume": "gxpo.training.train",
    "train": "gxpo.training.train",
    "__version__": "gxpo.version",
}
_MODULES = {
    "callbacks": "gxpo.training.callbacks",
    "config": "gxpo.training.config",
    "credit": "gxpo.algorithms.credit",
    "errors": "gxpo.base.errors",
    "grouped": "gxpo.forest.grouped",
    "objectives": "gxpo.algorithms.objectives",
    "records": "gxpo.forest.records",
    "weighting": "gxpo.algorithms.weighting",
}

__all__ = [
    "Forest",
    "Method",
    "PolicyTokens",
    "Run",
    "Task",
    "TimeStep",
    "Trainer",
    "callbacks",
    "config",
    "credit",
    "errors",
    "grouped",
    "method",
    "objectives",
    "records",
    "resume",
    "train",
    "weighting",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    if name in _HOMES:
        from gxpo.base.imports import collections_paused

        if name in ("train", "resume"):  # programs, unlike the rest: before torch is loaded
            from gxpo.base.library_variables import set_library_variables

            set_library_variables()
        with collections_paused():
            value = getattr(importlib.import_module(_HOMES[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'gxpo' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__")), "__version__"})
