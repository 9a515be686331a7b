"""Former names of signal parts."""

from __future__ import annotations

from gxpo.former import Former

FORMER = {"newest_mean": Former("task_mean", {"prior": 0.0, "window": 20})}
