r"""GRAFT: the group's trajectories grown together at equal states; a step is credited with the change of value.

V(s)    = mean over the steps that left s of r + V(s'), solved over the whole graph (Bellman); 0 at the end
delta_t = r_t + V(s_{t+1}) - V(s_t)
A_t     = delta_t + lambda A_{t+1} along the trajectory, lambda 0.95

A failed trajectory's step into a state from which others succeed has credit above 0.

Choices (from the abstract and short notes). Discount 1, since credit is said to be the difference of node values.
Lambda, and that GAE follows the trajectory's own steps, are ours: over all steps out of a state the mean of delta is 0,
so that an average over the graph would end after one step. Nothing is scaled by a spread.
"""

from gxpo.credit.graph_values import GraphValues
from gxpo.keys import Definition

graft = Definition(
    name="graft",
    title="Back to the Definition: Estimating Step-Level Advantages via Trajectory Graphs for Agentic Reinforcement "
    "Learning",
    arxiv="2609.28963",
    authors="Yao, Xincheng and Fu, Haobo and Liu, Weiming and Zhang, Chongyang",
    year=2026,
    idea="all trajectories of a group are one graph, whose states' values say what each step has changed",
    formula="V(s) = mean of r + V(s') over the steps out of s; A_t = r_t + V(s_{t+1}) - V(s_t) + 0.95 A_{t+1}",
    evidence="reconstruction",
    keys={"credit": GraphValues},
    choices="discount 1, lambda 0.95, GAE along each trajectory, no scaling",
)
