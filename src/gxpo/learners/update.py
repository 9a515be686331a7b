"""Base class of updates."""

from __future__ import annotations

from gxpo.ranges import Part


class UpdatePart(Part):
    """Base of updates: a frozen dataclass with `run` and `optimiser_steps` (`gxpo.protocols.Update`)."""

    slot = "update"
