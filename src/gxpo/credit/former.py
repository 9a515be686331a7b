"""Former names of credit parts."""

from __future__ import annotations

from gxpo.former import Former

FORMER = {"pass_atk": Former("pass_at_k")}
