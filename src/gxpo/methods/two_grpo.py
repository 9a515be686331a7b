r"""2-GRPO: groups of two rollouts, a contrastive pair as in DPO.

A = (r - mean) / (std + 1e-6) with the population's std: (1, -1) where the two differ, (0, 0) where they do not.
With ratios rho, o_1 the better: J = 1/2 [ mean_t min(rho_1, 1.2) - mean_t max(rho_2, 0.8) ]

Choices. Only the order of two real-valued rewards counts, not how far they are apart. The std has no degree of freedom
taken off: with one, as in the base, A is 0.707107 and the step 0.7071 times as long. A pair of equal rewards (a share
p^2 + (1 - p)^2 of them at rate p) has no gradient, so spend the saved rollouts on more tasks: `--set
tasks.per_step=...`.
"""

from gxpo.parts.definition import Definition

two_grpo = Definition(
    name="two_grpo",
    doc=__doc__,
    title="It Takes Two: Your GRPO Is Secretly DPO",
    arxiv="2510.00977",
    authors="Wu, Yihong and Ma, Liheng and Ding, Lei and others",
    year=2025,
    formula="A = (1, -1) where r_1 > r_2, (0, 0) where they are equal",
    evidence="paper",
    keys={"credit.ddof": 0, "rollout.group_size": 2},
    cost="none beyond the base; an eighth of the rollouts of groups of 16",
)
