r"""DHPO: mixture of token-level and sequence-level importance ratios, each clipped in its own range.

s_i = exp(mean_t log rho_{i,t});   m_t = w_t clip(rho_t, 1 +- 0.2) + (1 - w_t) clip(s_i, 1 - 3e-4, 1 + 4e-4)
L = mean_i mean_t -A m_t;   w = 1/2, or the token's entropy between its trajectory's extremes (`mixing: entropy`)

Choices. The widths of both branches are those of GRPO and GSPO: the paper's are not known to us. Each branch is a plain
clip, as the prose says, which stops tokens on the harmful side too; `objective.sides: improving` takes PPO's minimum in
each. How entropies are brought to [0, 1] is ours. The sequence ratio is in GSPO's token form.
"""

from gxpo.algorithms.objectives.ratio_trajectory import filtered, prefix_level
from gxpo.algorithms.objectives.surrogate_clips import hybrid_clip
from gxpo.parts.definition import Definition

dhpo = Definition(
    name="dhpo",
    doc=__doc__,
    title="Orchestrating Tokens and Sequences: Dynamic Hybrid Policy Optimization for RLVR",
    arxiv="2601.05607",
    authors="Min, Zijun and Liu, Bingshuai and Wang, Ante and Zhang, Long and Zeng, Anxiang and Zhang, Haibo and "
    "Su, Jinsong",
    year=2026,
    formula="L = mean_i mean_t -A (w clip(rho, 1 +- 0.2) + (1 - w) clip(s, 1 - 3e-4, 1 + 4e-4)), w = 1/2",
    evidence="secondary",
    keys={"objective.surrogate": hybrid_clip},
    refuses={"objective.ratio": ("sequence", "turn", filtered, prefix_level)},
)
