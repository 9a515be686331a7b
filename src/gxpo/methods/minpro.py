r"""MinPRO: off-policy token weight: the ratio times the minimum ratio of the prefix, capped and detached.

w_t = rho_t min_{u<t} rho_u (w_1 = rho_1);   l_t = -stop(min(w_t, ratio_max)) A log pi(o_t), the mean over all tokens
Exactly, a token sampled by another policy is corrected by prod_{u<=t} rho_u: by its own ratio and by that of the state
it was sampled in. The product's variance grows with the length; its surrogate's does not.

Choices. From a survey that gives the objective; no code was found. There the weight is clipped to
(1 - e_low, 1 + e_high), whose widths we don't know: here 1.28 above and nothing below (`objective.ratio_min`), since a
floor near 1 would undo what an unlikely prefix is to do. The prefix is exclusive and reaches back over turns.
`objective.prefix: sum` is the exact correction, `mean` the prefix's geometric mean.
"""

from gxpo.algorithms.objectives import truncate
from gxpo.algorithms.objectives.ratio_trajectory import prefix_level
from gxpo.parts.definition import Definition

minpro = Definition(
    name="minpro",
    doc=__doc__,
    title="A Step Back: Prefix Importance Ratio Stabilizes Policy Optimization",
    arxiv="2601.22718",
    authors="Lei, Shiye and Cheng, Zhihao and Tao, Dacheng",
    year=2026,
    formula="L = mean over tokens of -stop(min(rho_t min_{u<t} rho_u, 1.28)) A log pi",
    evidence="secondary",
    keys={"objective.ratio": prefix_level, "objective.surrogate": truncate, "objective.aggregate": "token_mean"},
)
