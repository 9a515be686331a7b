"""Former names of updates."""

from __future__ import annotations

from gxpo.former import Former

FORMER = {"replayed_first": Former("epochs", {"first": "replay"})}
