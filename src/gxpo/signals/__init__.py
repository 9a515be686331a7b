"""Signals: named quantities that parts read, computed once per step by the trainer or passed by the caller."""

from gxpo.learning import BUILT_IN, Signals
from gxpo.signals.base import SignalPart, SignalTools

__all__ = ["BUILT_IN", "SignalPart", "SignalTools", "Signals"]
