r"""SALT: a step that several trajectories of the group took has the mean of their advantages.

A_i    = (R_i - mean_g) / (std_g + eps)
A'_it  = mean of A_j over all steps (j, k) of the group that are the same edge as (i, t)
edge   = (history, state, action, next state)

Shared steps are neutral where those who took them fared differently; a step of one's own keeps the whole advantage.

Choices. From an overview and from what GRAFT's authors write about it (arXiv 2609.28963, appendix A.3: the transitions
(s, a, s') that are equal share the mean of their advantages); there is no code. How much history must be equal is tuned
in the paper, and its values are not known: here the state before the step (`credit.history: 1`; 0 merges more). Actions
are equal token by token. RLOO as the base: `credit.center: leave_one_out`, `credit.scale: none`.
"""

from gxpo.credit.shared_edges import SharedEdges
from gxpo.keys import Definition

salt = Definition(
    name="salt",
    title="SALT: Step-level Advantage Assignment for Long-horizon Agents via Trajectory Graph",
    arxiv="2510.20022",
    authors="Li, Jiazheng and Wang, Yawei and Yan, Qiaojing and Tian, Yijun and Xu, Zhichao and Song, Huan and "
    "Xu, Panpan and Cheong, Lin Lee",
    year=2025,
    idea="steps that several trajectories share are judged by all of them, the others by their own outcome",
    formula="A'_it = mean of A_j over the group's steps with the same (history, state, action, next state)",
    evidence="secondary",
    keys={"credit": SharedEdges},
    choices="a history of one state before the step; actions equal token by token; GRPO's advantage as the base",
)
