"""Policy losses: importance ratio, surrogate (PPO clip and others), aggregation, KL, entropy."""

from gxpo.algorithms.objectives.base import PolicyGradient, TermPart, TermSum, coefficients, evaluate
from gxpo.algorithms.objectives.penalty import KL, Entropy, KLReward, kl_estimate, penalised_outcome
from gxpo.algorithms.objectives.surrogate import (
    Clip,
    DualClip,
    Entries,
    LogClip,
    Ratio,
    Surrogate,
    clip_loss,
    denominator,
    sequence_ratio,
    truncate,
    unclipped,
    weighted_loss,
)

__all__ = [
    "KL",
    "Clip",
    "DualClip",
    "Entries",
    "Entropy",
    "KLReward",
    "LogClip",
    "PolicyGradient",
    "Ratio",
    "Surrogate",
    "TermPart",
    "TermSum",
    "clip_loss",
    "coefficients",
    "denominator",
    "evaluate",
    "kl_estimate",
    "penalised_outcome",
    "sequence_ratio",
    "truncate",
    "unclipped",
    "weighted_loss",
]
