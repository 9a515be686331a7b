r"""CISPO: clipped, detached importance weights on log pi, so that every token keeps its gradient.

l_t = -stop(min(rho_t, 1.28)) A log pi(o_t), token mean over the batch; 1.28 is `objective.ratio_max`

Choices. Upper bound only, as the paper trains (eq. 4 and 5); it does not publish the bound, nor code: 1.28 (absolute)
is clip-higher's. The paper divides by the tokens of a question's answers, this by those of the batch; it also has
DAPO's dynamic sampling and length penalty, which are not part of this. TRL's `epsilon_high` is this absolute bound,
elsewhere the same number is an offset from 1. On policy every coefficient is exactly 1. The value of the loss has no
meaning.
"""

from gxpo.algorithms.objectives import truncate
from gxpo.parts.definition import Definition

cispo = Definition(
    name="cispo",
    doc=__doc__,
    title="MiniMax-M1: Scaling Test-Time Compute Efficiently with Lightning Attention",
    arxiv="2506.13585",
    authors="MiniMax",
    year=2025,
    evidence="paper",
    keys={"objective.surrogate": truncate, "objective.aggregate": "token_mean"},
)
