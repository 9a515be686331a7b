"""Former names of rewards."""

from __future__ import annotations

from gxpo.former import Former

_SHAPES = (
    "added_component", "correct_prefix", "entity_match", "length_relative", "likelihood_discount", "plan_success",
    "process_bonus", "rescaled", "signed", "soft_threshold", "tiered",
)  # fmt: skip

FORMER = {name: Former("shape", {"function": name}) for name in _SHAPES} | {
    "noted": Former("shape", {"function": "noted"}, {"outcome": "outcome_weight"}),
}
