r"""CAPO (curvature): tokens whose own step would, to second order, do harm or move the policy far are masked.

g = A (e_a - p) h^T in the head's weights, D = lr sign(g):  m_H = g.D + D.H.D / 2,  m_F = D.F.D / 2
keep where low <= m_H <= high and m_F <= most

Choices. With this step both depend on the sampled token's probability, |h|_1 and A alone, so no logits are needed. The
paper's thresholds are fixed and tuned so that fewer than 8 % of tokens go; here they are quantiles of the step, a third
of 8 % beyond each, and the lower one is never above 0. `weight.curvature.lr` is to be the update's. h is the last
hidden state of the policy at the start of the step.
"""

from gxpo.keys import Definition
from gxpo.signals.state_norm import StateNorm
from gxpo.weighting.curvature import Curvature

capo_curvature = Definition(
    name="capo_curvature",
    title="Stabilizing Policy Gradients for Sample-Efficient Reinforcement Learning in LLM Reasoning",
    arxiv="2510.00819",
    authors="Melo, Luckeciano C. and Abate, Alessandro and Gal, Yarin",
    year=2025,
    idea="a second-order model of the last layer tells which tokens would make the update unstable",
    formula="w = [low <= m_H <= high][m_F <= most], m_H and m_F in closed form from p, |h|_1, A",
    evidence="secondary",
    keys={"weight.curvature": Curvature, "signal.state_norm": StateNorm},
    choices="quantiles that reject at most 8 % of tokens; the step is lr sign(g)",
    cost="a forward pass for hidden states before the update",
)
