"""Former name of `gxpo.definition`."""

from __future__ import annotations

from gxpo.definition import (
    CODE,
    EVIDENCE,
    STAGES,
    Definition,
    Stated,
    check_refusals,
    finite,
    merge,
    same,
    show,
    unknown_key,
)

__all__ = [
    "CODE",
    "EVIDENCE",
    "STAGES",
    "Definition",
    "Stated",
    "check_refusals",
    "finite",
    "merge",
    "same",
    "show",
    "unknown_key",
]
