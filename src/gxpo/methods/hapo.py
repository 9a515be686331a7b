r"""HAPO: token-level group normalisation, with clip range and advantage scale that follow each token's entropy.

A_i = (r_i - mean) / (std + 1e-6), mean and population std over all tokens of the group, each with its answer's reward
h_t = log H_t - Q_0.8(log H) over its extremes, in [-1, 1];   clip to [1 - 0.2 (1 - min(h, 0)), 1 + 0.2 (1 + max(h, 0))]
A times 1 + h where h > 0 and rho is outside the half of that region, and where h <= 0 and rho is inside it

Choices. Q is the token's value that is nearest to the quantile, as coded. The code divides negative h by a negative
number, so that all h are in [0, 1] and its low-entropy branch never runs; here it does, as the paper has it. Entropies
are the current policy's, their quantile is of the optimiser step's tokens (the code: of each micro-batch's). Where any
|A| of a group reaches 5 the code takes GRPO's for that group: done. Temperature by entropy while sampling and DAPO's
filter of equal groups, which the scripts have, are left out.
"""

from gxpo.algorithms.credit import length_weighted
from gxpo.algorithms.objectives.surrogate_clips import entropy_adaptive_clip
from gxpo.parts.definition import Definition

hapo = Definition(
    name="hapo",
    doc=__doc__,
    title="From Uniform to Heterogeneous: Tailoring Policy Optimization to Every Token's Nature",
    arxiv="2509.16591",
    authors="Liu, Zheng and Liu, Mengjie and Wen, Siwei and others",
    year=2025,
    formula="A over the group's tokens; clip 1 - 0.2 (1 - min(h, 0)), 1 + 0.2 (1 + max(h, 0)); A (1 + h) by region",
    evidence="reference-code",
    code="starriver030515/HAPO@7671dde3e268779a949954ec75ed3edda45f7e0a verl/trainer/ppo/core_algos.py "
    "verl/workers/actor/dp_actor.py recipe/qwen2.5_math_7b.sh",
    keys={
        "credit": length_weighted,
        "credit.scale": "std",
        "credit.bound": 5.0,
        "objective.surrogate": entropy_adaptive_clip,
        "objective.aggregate": "token_mean",
    },
)
