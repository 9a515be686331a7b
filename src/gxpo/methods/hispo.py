r"""HisPO: mask answers and tokens by the mismatch of sampler and learner, then a dual-clipped surrogate; no KL.

r_dis = old / sampler;   m_t = [|exp(mean_t log r_dis) - 1| <= 0.1] [|r_dis_t - 1| <= 0.5]
l_t = -m_t A rho, rho = policy / sampler, held at 1.2 (A > 0), at 0.8 and 3 (A < 0)
no KL

Choices. The report's eqs. 8 and 9 (its section 3.3 and file in meituan-longcat/LongCat-Flash-Prover; the code is not
published, nor is any number): the bounds are ours, the three of the clip PPO's and the usual dual clip. The clip is on
the product r_dis r_stale = policy / sampler. Masked tokens stay in the denominator. A mean over each answer's tokens,
as in the base: its equation divides by the longest answer of the group, its text by a constant (`hispo@paper`).
"""

from gxpo.algorithms.objectives import DualClip
from gxpo.algorithms.weighting.mismatch import MismatchMask
from gxpo.parts.definition import Definition

hispo = Definition(
    name="hispo",
    doc=__doc__,
    title="LongCat-Flash-Prover: Advancing Native Formal Reasoning via Agentic Tool-Integrated Reinforcement Learning",
    arxiv="2603.21065",
    authors="Wang, Jianing and Zhang, Jianfei and Guo, Qi and others",
    year=2026,
    formula="l = -[mean r_dis in 1 +- 0.1] [r_dis_t in 1 +- 0.5] min(A rho, A clip(rho; 0.8, 1.2; 3))",
    evidence="paper",
    keys={
        "objective.surrogate": DualClip,
        "objective.ratio_over": "behaviour",
        "weight.mismatch_mask": MismatchMask,
        "weight.mismatch_mask.token_min": 0.5,
        "weight.mismatch_mask.token_max": 1.5,
        "weight.mismatch_mask.sequence_min": 0.9,
        "weight.mismatch_mask.sequence_max": 1.1,
    },
    paper_defaults={"objective.aggregate": "sequence_sum"},
    cost="a forward pass over the rollouts before the update",
)
