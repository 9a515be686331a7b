r"""GPPO: tokens that the clip would cut keep the gradient of the bound.

held above: l = -A (1 + e) rho / stop(rho);   held below: l = -A (1 - e) rho / stop(rho);   else -A rho
The value is PPO's. A rewarded token that has gone up far enough is still pushed, at the bound's weight; a punished one
far below is pushed with 1 - e, more than its ratio.

CE-GPPO (arXiv 2509.20712) multiplies the two by factors: `{"objective.slope_low": 0.75}`; both 0 is PPO's gradient.
Choices. Who is held is decided by PPO's rule, before the factors: the maximum of the two scaled terms would let go of
a token between 0.75 (1 - e) and 1 - e. The factors scale the value, too. Token mean; no dual clip (the code's constant
for it is read by nothing).
"""

from gxpo.keys import Definition
from gxpo.objectives.gate_preserving import PreservingClip

gppo = Definition(
    name="gppo",
    title="Klear-Reasoner: Advancing Reasoning Capability via Gradient-Preserving Clipping Policy Optimization",
    arxiv="2508.07629",
    authors="Su, Zhenpeng and Pan, Leiyu and Bai, Xue and others",
    year=2025,
    idea="clip the weight of a token's gradient at the bound, and not the gradient",
    formula="l = max(-A rho, -A b rho / stop(rho)), b = clip(rho, 1 - e, 1 + e)",
    evidence="reference-code",
    keys={"objective.gate": PreservingClip, "objective.aggregate": "token_mean"},
    choices="branch by PPO's condition; factors (CE-GPPO) on value and gradient; token mean",
)
