"""Signals: quantities that parts ask for by name, computed once per step by the trainer or handed in by the caller."""

from gxpo import former
from gxpo.signals.base import SignalPart, SignalTools
from gxpo.signals.held import BUILT_IN, Signals

__all__ = ["BUILT_IN", "SignalPart", "SignalTools", "Signals"]

__getattr__ = former.classes("signals")
