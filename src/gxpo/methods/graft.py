r"""GRAFT: state graph merged from the group's trajectories; step advantages are TD errors of its Bellman values.

V(s)    = mean over the steps that left s of r + 0.99 V(s'), solved over the whole graph (Bellman); 0 at the end
delta_t = r_t + 0.99 V(s_{t+1}) - V(s_t);   A_t = delta_t / std of the deltas of the steps out of s_t
rho     = geometric mean over the step's tokens, clipped at 1 +- 0.2 (the paper's eq. 4)

A failed trajectory's step into a state from which others succeed has an advantage above 0.

Choices. After the paper; its code was announced and is not there. Its Graph GAE (eq. 9) adds (0.99 lambda)^k times the
mean delta of the steps k further on: under these values that mean is 0 at every state, so lambda (0.95, 0.8, 0.6 in the
paper) changes nothing, and `credit.lam` is 0; above 0 it is GAE along each trajectory. A step that is alone at its
state is given its sign in the paper: its delta is 0. The std has one degree of freedom. The paper averages over steps,
here over trajectories. States are equal by the environment's word (`credit.similar` merges texts).
"""

from gxpo.algorithms.credit.graph_values import graph_advantage
from gxpo.parts.definition import Definition

graft = Definition(
    name="graft",
    doc=__doc__,
    title="Back to the Definition: Estimating Step-Level Advantages via Trajectory Graphs for Agentic Reinforcement "
    "Learning",
    arxiv="2609.28963",
    authors="Yao, Xincheng and Fu, Haobo and Liu, Weiming and Zhang, Chongyang",
    year=2026,
    formula="V(s) = mean of r + 0.99 V(s') over the steps out of s; A_t = z of r_t + 0.99 V(s_{t+1}) - V(s_t) at s_t",
    evidence="paper",
    keys={
        "credit": graph_advantage,
        "credit.discount": 0.99,
        "credit.lam": 0.0,
        "credit.scale": "std",
        "objective.ratio": "turn",
    },
)
