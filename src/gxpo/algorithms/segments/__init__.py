"""Segmenters: cut actions into segments for segment-level advantages."""

from gxpo.algorithms.segments.base import LABEL, Action, Segmenter, SegmentTools
from gxpo.algorithms.segments.segmenters import (
    Chunks,
    Delimiter,
    Pattern,
    Spans,
    Turns,
    entropy_segments,
    equal_shares,
    surprising,
)
from gxpo.parts.definition import kind_of

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
