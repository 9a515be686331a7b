r"""HGPO: hierarchical step groups: advantages averaged over groups that share the last one, two, three states.

key_h(t) = (s_{t-h}, ..., s_t),  h = 0..K, K = 2;   G_t the return with discount 0.95
A_h = (G_t - mean) / (std + eps) over the group's steps with the same key_h, std over all of them (ddof 0)
A   = sum_h w_h A_h / sum_h w_h,  w_h = (h + 1)^alpha, alpha 1, over the levels with another step; 0 where there is none

Choices. Only states are compared, not actions, as in the authors' code. Weights 1, 2, 3 as in the paper; the recipe in
verl-agent (read in a fork of it) has 2, 3, 4 (`credit.offset: 2`). The code leaves out levels whose advantage is
exactly 0, so that a step which is average by floating point is judged by the other levels alone (`credit.ignore:
zero`); here levels are left out at which all returns are equal, and there is nothing to compare. No level of whole
trajectories, as by default there. K is the window of history that the policy sees.
"""

from gxpo.algorithms.credit.history_groups import history_groups
from gxpo.parts.definition import Definition

hgpo = Definition(
    name="hgpo",
    doc=__doc__,
    title="Hierarchy-of-Groups Policy Optimization for Long-Horizon Agentic Tasks",
    arxiv="2602.22817",
    authors="He, Shuo and Feng, Lang and Wei, Qi and Cheng, Xin and Feng, Lei and An, Bo",
    year=2026,
    formula="A = sum_h w_h A_h / sum_h w_h, A_h over steps with equal (s_{t-h}, ..., s_t), w_h = h + 1, h = 0..2",
    evidence="reference-code",
    keys={"credit": history_groups},
    paper_defaults={"objective.kl.coef": 0.01, "rollout.group_size": 8, "optim.lr": 1e-6},
    code="zzj1111/alfworldauto@37aec781da7f377874516e22d7f32c1932215eb4 recipe/hgpo/core_hgpo.py",
)
