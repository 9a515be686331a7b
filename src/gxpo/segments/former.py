"""Former names of segmenters."""

from __future__ import annotations

from gxpo.former import Former

FORMER = {"uncertain": Former("entropy_segments")}
