"""Former name of `gxpo.registry`."""

from __future__ import annotations

from gxpo.registry import (
    CONTROLS,
    CREDITS,
    PLACES,
    RATIOS,
    REWARDS,
    ROLLOUTS,
    SEGMENTERS,
    SIGNALS,
    SURROGATES,
    TERMS,
    UPDATES,
    WEIGHTS,
    Table,
    place_of,
)

__all__ = [
    "CONTROLS",
    "CREDITS",
    "PLACES",
    "RATIOS",
    "REWARDS",
    "ROLLOUTS",
    "SEGMENTERS",
    "SIGNALS",
    "SURROGATES",
    "TERMS",
    "UPDATES",
    "WEIGHTS",
    "Table",
    "place_of",
]
