r"""SALT: step-level advantages by trajectory graph: steps shared by several rollouts get their mean advantage.

A_i    = (R_i - mean_g) / (std_g + eps)
A'_it  = mean of A_j over all steps (j, k) of the group that are the same edge as (i, t)
edge   = (history, state, action, next state)

Shared steps are neutral where the rollouts through them differ in outcome; a step of a single rollout keeps its
advantage.

Choices. From an overview and from what GRAFT's authors write about it (arXiv 2609.28963, appendix A.3: the transitions
(s, a, s') that are equal share the mean of their advantages); there is no code. How much history must be equal is tuned
in the paper, and its values are not known: here the state before the step (`credit.history: 1`; 0 merges more). Actions
are equal token by token. RLOO as the base: `credit.center: leave_one_out`, `credit.scale: none`.
"""

from gxpo.algorithms.credit.shared_edges import shared_edges
from gxpo.parts.definition import Definition

salt = Definition(
    name="salt",
    doc=__doc__,
    title="SALT: Step-level Advantage Assignment for Long-horizon Agents via Trajectory Graph",
    arxiv="2510.20022",
    authors="Li, Jiazheng and Wang, Yawei and Yan, Qiaojing and Tian, Yijun and Xu, Zhichao and Song, Huan and "
    "Xu, Panpan and Cheong, Lin Lee",
    year=2025,
    formula="A'_it = mean of A_j over the group's steps with the same (history, state, action, next state)",
    evidence="secondary",
    keys={"credit": shared_edges},
)
