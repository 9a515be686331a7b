r"""APMPO: adaptive power mean of token ratios, with an upper clip bound that adapts to the rewards.

J_i = sgn(A_i) (mean_t phi_t^p)^(1/p), phi_t = |min(rho_t A_i, clip(rho_t, 1 - 0.2, 1 + e) A_i)|;   L = -mean_i J_i
p = exp(-0.8 mu),   e = 0.2 + 0.2 tanh(mu / (sigma + 1e-6));   mu, sigma: mean and std of the step's rewards

Choices. The minimum is of signed terms, as in PPO, before the absolute value (a minimum of absolute values would let a
wrong answer's ratio fall without bound). Where A is 0 nothing is trained: phi^(p - 1) has no value there. mu and sigma
are those of the optimiser step; below mu = 0 the upper bound stays at its least.
"""

from gxpo.algorithms.objectives.power_mean import PowerMean
from gxpo.parts.definition import Definition

apmpo = Definition(
    name="apmpo",
    doc=__doc__,
    title="Adapt to Thrive! Adaptive Power-Mean Policy Optimization for Improved LLM Reasoning",
    arxiv="2605.04066",
    authors="Huang, Yiming and Shi, Zhenbo and Gao, Shuzheng and Gao, Cuiyun and Han, Peiyi and Liu, Chuanyi",
    year=2026,
    formula="L = -mean_i sgn(A) M_p(|min(rho A, clip(rho) A)|), p = exp(-0.8 mean r), upper clip by mean r / std r",
    evidence="secondary",
    keys={"objective": PowerMean},
    paper_defaults={"objective.kl.coef": 0.001},
)
