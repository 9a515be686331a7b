r"""GVPO: regression of group-centred log-ratios (implicit rewards) on group-centred rewards; no ratio, no clip.

D_i = sum_t (log policy - log old);   L_g = (1/2) sum_i [beta (D_i - mean D) - (r_i - mean r)]^2 / (G - 1)
The only optimum is the policy that maximises reward - beta KL(policy || old); no ratio, no clip, any sampler.

Choices. `old` is the policy at the start of the step; `objective.ratio_over: reference` fixes the anchor. The group
mean of D is taken as a constant: exact, because residuals sum to 0. No std; beta is 0.1, L a mean over groups. At D = 0
it is REINFORCE with the group's mean as baseline, times beta / (G - 1). Advantages are not read.
"""

from gxpo.algorithms.objectives.sequence_losses import GroupVariance
from gxpo.parts.definition import Definition

gvpo = Definition(
    name="gvpo",
    doc=__doc__,
    title="GVPO: Group Variance Policy Optimization for Large Language Model Post-Training",
    arxiv="2504.19599",
    authors="Zhang, Kaichen and Hong, Yuzhong and Bao, Junwei and others",
    year=2025,
    formula="L = mean_g (1/2) sum_i [beta (D_i - mean D) - (r_i - mean r)]^2 / (G - 1), D = sum_t log(pi/old)",
    evidence="reference-code",
    keys={"objective": GroupVariance},
    refuses={"objective.kl.place": ("reward",)},
    code="jszkc/GVPO@627aa25e32acdaaa2c374946ccc703a7848ec8c1 GVPO/gvpo_core_algos.py GVPO/gvpo_dp_actor.py "
    "GVPO/gvpo_actor_config.py",
)
