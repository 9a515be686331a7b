"""Policy losses: importance ratio, surrogate (PPO clip and others), aggregation, KL, entropy."""

from gxpo.objectives.base import PolicyGradient, TermPart, TermSum, coefficients, evaluate
from gxpo.objectives.entropy import Entropy
from gxpo.objectives.kl import KL, kl_estimate, penalised_outcome
from gxpo.objectives.kl_reward import KLReward
from gxpo.objectives.surrogate import (
    Clip,
    DualClip,
    Entries,
    Gate,
    LogClip,
    Ratio,
    Surrogate,
    Truncate,
    denominator,
    sequence_ratio,
)

__all__ = [
    "KL",
    "Clip",
    "DualClip",
    "Entries",
    "Entropy",
    "Gate",
    "KLReward",
    "LogClip",
    "PolicyGradient",
    "Ratio",
    "Surrogate",
    "TermPart",
    "TermSum",
    "Truncate",
    "coefficients",
    "denominator",
    "evaluate",
    "kl_estimate",
    "penalised_outcome",
    "sequence_ratio",
]
