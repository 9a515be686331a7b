"""Segmenters: cut actions into segments for segment-level advantages."""

from gxpo.definition import kind_of
from gxpo.segments.base import LABEL, Action, Segmenter, SegmentTools
from gxpo.segments.by_text import Delimiter, Pattern, Spans
from gxpo.segments.by_tokens import Chunks, Turns, entropy_segments, equal_shares, surprising

EntropySegments, Surprising = kind_of(entropy_segments), kind_of(surprising)  # the parts that the functions are

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
    "entropy_segments",
    "equal_shares",
    "surprising",
]
