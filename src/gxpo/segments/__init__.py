"""Segmenters: cut actions into segments for segment-level advantages."""

from gxpo import former
from gxpo.segments.base import LABEL, Action, Segmenter, SegmentTools
from gxpo.segments.by_text import Delimiter, Pattern, Spans
from gxpo.segments.by_tokens import Chunks, EntropySegments, Surprising, Turns, equal_shares

__all__ = [
    "LABEL",
    "Action",
    "Chunks",
    "Delimiter",
    "EntropySegments",
    "Pattern",
    "SegmentTools",
    "Segmenter",
    "Spans",
    "Surprising",
    "Turns",
    "equal_shares",
]

__getattr__ = former.classes("segments")
