"""Where an action is cut: segmenters number the stretches that credit is given to."""

from gxpo.segments.base import LABEL, Action, Segmenter, SegmentTools
from gxpo.segments.by_text import Delimiter, Pattern, Spans
from gxpo.segments.by_tokens import Chunks, Surprising, Turns, Uncertain, equal_shares

__all__ = [
    "LABEL",
    "Action",
    "Chunks",
    "Delimiter",
    "Pattern",
    "SegmentTools",
    "Segmenter",
    "Spans",
    "Surprising",
    "Turns",
    "Uncertain",
    "equal_shares",
]
