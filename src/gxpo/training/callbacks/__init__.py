"""Callbacks: loggers, and users' own stopping rules.

class Mine(gxpo.training.callbacks.Callback):
    def on_step(self, row, run):
        print(row["step"], row.get("reward_mean"))

gxpo.train(..., callbacks=[Mine()])
"""

from __future__ import annotations

from gxpo.training.callbacks.base import Callback, Row, Sample, history
from gxpo.training.callbacks.dispatch import LOGGERS, Dispatcher, make

__all__ = ["LOGGERS", "Callback", "Dispatcher", "Row", "Sample", "history", "make"]
