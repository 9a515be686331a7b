r"""SPO (Simple Policy Optimization): quadratic ratio penalty with its optimum at PPO's clip bound.

J = A rho - |A| (rho - 1)^2 / (2 e),   e = 0.2;   dJ/drho = A - |A| (rho - 1) / e

The optimum is at rho = 1 + sign(A) e. PPO has no gradient beyond that point; here it turns round, and tokens that
overshot come back. With a coefficient of its own in place of |A| / (2 e) it is R2VPO (`r2vpo`).
Choices. The loss only; with a learned critic, as in the paper, it is `gae+spo_simple`. No clamp on the ratio.
"""

from gxpo.algorithms.objectives.surrogate_penalties import quadratic_penalty
from gxpo.parts.definition import Definition

spo_simple = Definition(
    name="spo_simple",
    doc=__doc__,
    title="Simple Policy Optimization",
    arxiv="2401.16025",
    authors="Xie, Zhengpeng and Zhang, Qiang and Yang, Fan and Hutter, Marco and Xu, Renjing",
    year=2024,
    evidence="reference-code",
    keys={"objective.surrogate": quadratic_penalty},
    code="MyRepositories-hub/Simple-Policy-Optimization@9fdeda315b00cee82d1dc4e10c01db200c97e909 mujoco/trainer.py",
)
