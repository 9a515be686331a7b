"""Adapters for other trainers: `gxpo.adapters.trl`, `gxpo.adapters.verl`; `available` lists what works in each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gxpo.adapters.available import Row


def methods_in(trainer: str, names: Iterable[str] | None = None) -> list[Row]:
    """Every method (or the compositions `names`) in "trl" or "verl": whether it works, what it has to be given, why
    not. Needs neither installed. ConfigError for another trainer or an unknown name.
    """
    from gxpo.adapters.available import available

    return available(trainer, names)
