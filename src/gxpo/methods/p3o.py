r"""P3O (pairwise PPO): policy gradient on the difference of the rewards of two answers, whole answers' ratios clipped.

A_1 = (r_1 - r_2) / 2 = -A_2;   rho_i = prod_t policy / old;   L = -mean_i min(rho_i A_i, clip(rho_i, 0.8, 1.2) A_i)

Choices. From the article of its first two authors ("Rethinking the Role of PPO in RLHF", BAIR blog, 2023): the
gradient is that of (r_1 - r_2) log(policy(y_1) / policy(y_2)) / 2, answers come from an old policy with importance
ratios, and version 1 clips each answer's ratio; the width and the form of the clip are ours. Here the two answers are
averaged, half of that sum. Version 2 clips the joint ratio of the two, by a surrogate that we could not verify, and
is not built. What a prompt adds to all rewards cancels. For pairs this is GRPO without the standard deviation and
with the ratio of the sequence, so groups of more than two work alike. The reward less beta log(policy / reference) is
`objective.kl.place: reward`. A circulated form of the gradient has the product of the two probabilities in place of
their ratio; its expectation is 0. The loss is one term an answer (changed on 2026-11-28: before, the figure `loss`
counted it once a token, with the same gradient). Two other methods are called P3O.
"""

from gxpo.algorithms.objectives.ratio_trajectory import sequence_product
from gxpo.parts.definition import Definition

p3o = Definition(
    name="p3o",
    doc=__doc__,
    title="Pairwise Proximal Policy Optimization: Harnessing Relative Feedback for LLM Alignment",
    arxiv="2310.00212",
    authors="Wu, Tianhao and Zhu, Banghua and Zhang, Ruoyu and Wen, Zhaojin and Ramchandran, Kannan and Jiao, Jiantao",
    year=2023,
    formula="A_1 = (r_1 - r_2) / 2 = -A_2; L = -mean min(rho A, clip(rho) A), rho of the whole answer",
    evidence="paper",
    keys={
        "credit.scale": "none",
        "objective.ratio": sequence_product,
        "rollout.group_size": 2,
    },
    cost="none beyond the base's",
)
