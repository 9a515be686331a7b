"""Callbacks: loggers, and stopping rules of one's own.

class Mine(gxpo.training.callbacks.Callback):
    def on_step(self, row, run):
        print(row["step"], row.get("reward_mean"))

gxpo.train(..., callbacks=[Mine()])
"""

from __future__ import annotations

from gxpo.training.callbacks.base import Callback, Row, Sample
from gxpo.training.callbacks.dispatch import Dispatcher
from gxpo.training.callbacks.history import history
from gxpo.training.callbacks.named import LOGGERS, make

__all__ = ["LOGGERS", "Callback", "Dispatcher", "Row", "Sample", "history", "make"]
