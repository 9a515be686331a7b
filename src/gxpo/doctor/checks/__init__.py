"""Checks by stage, in the order of diagnosis; importing this package registers them all."""

from gxpo.doctor.checks import (
    collapse,
    correspondence,
    credit,
    evaluation,
    health,
    outcome,
    reward_variance,
    sampled,
    scored,
    update,
)

__all__ = [
    "collapse",
    "correspondence",
    "credit",
    "evaluation",
    "health",
    "outcome",
    "reward_variance",
    "sampled",
    "scored",
    "update",
]
