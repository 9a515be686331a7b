r"""SAPO (soft adaptive): sigmoid of the ratio in place of the clip, with a temperature for each sign of A.

l = -A (4 / tau) sigmoid(tau (rho - 1)),   tau = 1 for A > 0, 1.05 for A < 0
Its gradient is that of -A rho times 4 p (1 - p), p the sigmoid: 1 at ratio 1, nothing far from it.

Choices. The value at ratio 1 is -2 A / tau, so that the loss is not 0 on policy; verl and TRL are the same. The name
of SAPO also belongs to swarm sampling.
"""

from gxpo.algorithms.objectives.surrogate_penalties import sigmoid
from gxpo.parts.definition import Definition

sapo_gate = Definition(
    name="sapo_gate",
    doc=__doc__,
    title="Soft Adaptive Policy Optimization",
    arxiv="2511.20347",
    authors="Gao, Chang and Zheng, Chujie and Chen, Xiong-Hui and others",
    year=2025,
    formula="l = -A (4 / tau) sigmoid(tau (rho - 1)), tau 1.0 | 1.05",
    evidence="secondary",
    keys={"objective.surrogate": sigmoid},
)
