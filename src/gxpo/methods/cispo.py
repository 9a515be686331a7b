r"""CISPO: the importance weight is bounded and detached; every token keeps its gradient.

l_t = -stop(min(rho_t, ratio_max)) A log pi(o_t), token mean over the batch

Choices. Upper bound only, as the paper trains (eq. 4 and 5); it does not publish the bound, nor code: 1.28 (absolute)
is clip-higher's. The paper divides by the tokens of a question's answers, this by those of the batch; it also has
DAPO's dynamic sampling and length penalty, which are not part of this. TRL's `epsilon_high` is this absolute bound,
elsewhere the same number is an offset from 1. On policy every coefficient is exactly 1. The value of the loss has no
meaning.
"""

from gxpo.keys import Definition
from gxpo.objectives import Truncate

cispo = Definition(
    name="cispo",
    title="MiniMax-M1: Scaling Test-Time Compute Efficiently with Lightning Attention",
    arxiv="2506.13585",
    authors="MiniMax",
    year=2025,
    idea="clip the weight, not the update: rare tokens that start a new thought are not dropped",
    formula="L = sum -stop(min(rho, 1.28)) A log pi / tokens",
    evidence="paper",
    keys={"objective.surrogate": Truncate, "objective.aggregate": "token_mean"},
    choices="ratio_max 1.28, absolute; no lower bound",
)
