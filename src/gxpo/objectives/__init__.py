"""What is minimised: ratio, gate, aggregation, KL, entropy."""

from gxpo.objectives.aggregate import coefficients
from gxpo.objectives.base import TermPart, TermSum
from gxpo.objectives.entropy import Entropy
from gxpo.objectives.gate import Clip, DualClip, Gate, LogClip, Truncate
from gxpo.objectives.kl import ESTIMATORS as KL_ESTIMATORS
from gxpo.objectives.kl import KL, KLReward, kl_estimate, penalised_outcome
from gxpo.objectives.policy_gradient import PolicyGradient
from gxpo.objectives.ratio import denominator, sequence_ratio, token_ratio

GATES = {"clip": Clip, "dual_clip": DualClip, "log_clip": LogClip, "truncate": Truncate}
TERMS = {"policy_gradient": PolicyGradient, "kl": KL, "entropy": Entropy}

__all__ = [
    "GATES",
    "KL",
    "KL_ESTIMATORS",
    "TERMS",
    "Clip",
    "DualClip",
    "Entropy",
    "Gate",
    "KLReward",
    "LogClip",
    "PolicyGradient",
    "TermPart",
    "TermSum",
    "Truncate",
    "coefficients",
    "denominator",
    "kl_estimate",
    "penalised_outcome",
    "sequence_ratio",
    "token_ratio",
]
