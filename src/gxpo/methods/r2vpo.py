r"""R2VPO: ratio-variance constraint with a Lagrange multiplier, in place of the clip.

max E[A rho] subject to E[(rho - 1)^2] <= d:   J = A rho - c (rho - 1)^2
c <- max(0, c + 0.1 (mean (rho - 1)^2 - d))

For A > 0 the gradient ends at rho = 1 + A / (2 c) and turns beyond it; for A < 0 and rho > 1 both parts push down.
Choices. No constants of the paper are known to us: c starts at 0.04 (a port's fixed value), d = 0.04 = 0.2^2, step 0.1.
The mean is over the tokens with an advantage other than 0, over the step's optimiser steps; c moves once per trainer
step, so with one update per batch, where every ratio is 1, it falls to 0. Tokens of advantage 0 are not penalised. Its
replay buffer is `r2vpo+repo_replay`.
"""

from gxpo.algorithms.objectives.surrogate_penalties import RatioVariance
from gxpo.parts.definition import Definition

r2vpo = Definition(
    name="r2vpo",
    doc=__doc__,
    title="Ratio-Variance Regularized Policy Optimization for Efficient LLM Fine-tuning",
    arxiv="2601.03320",
    authors="Luo, Yu and Han, Shuo and Hu, Yihan and Li, Dong and Hao, Jianye",
    year=2026,
    formula="J = A rho - c (rho - 1)^2, c <- [c + eta (mean (rho - 1)^2 - d)]_+",
    evidence="secondary",
    keys={"objective.surrogate": RatioVariance},
)
