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
    from gxpo import callbacks, config, credit, errors, grouped, objectives, records, weighting
    from gxpo.compose import method
    from gxpo.forest import Forest
    from gxpo.pipeline import Method
    from gxpo.protocols import PolicyTokens, Task, TimeStep
    from gxpo.trainer.loop import Trainer
    from gxpo.trainer.run import Run
    from gxpo.trainer.train import resume, train
    from gxpo.version import __version__ as __version__

_HOMES = {
    "Forest": "gxpo.forest",
    "Method": "gxpo.pipeline",
    "method": "gxpo.compose",
    "PolicyTokens": "gxpo.protocols",
    "Task": "gxpo.protocols",
    "TimeStep": "gxpo.protocols",
    "Trainer": "gxpo.trainer.loop",
    "Run": "gxpo.trainer.run",
    "resume": "gxpo.trainer.train",
    "train": "gxpo.trainer.train",
    "__version__": "gxpo.version",
}
_MODULES = ("callbacks", "config", "credit", "errors", "grouped", "objectives", "records", "weighting")

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
        return importlib.import_module(f"gxpo.{name}")
    if name in _HOMES:
        from gxpo.imports import collections_paused

        with collections_paused():
            value = getattr(importlib.import_module(_HOMES[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'gxpo' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__")), "__version__"})
