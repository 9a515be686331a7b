"""Signals: named quantities that parts read, computed once per step by the trainer or passed by the caller."""

from gxpo.algorithms.signals.base import SignalPart, SignalTools
from gxpo.parts.learning import BUILT_IN, Signals

__all__ = ["BUILT_IN", "SignalPart", "SignalTools", "Signals"]
