r"""GBPO: regression of the ratio on its bounded optimum, 1 + e above the group median and 1 - e below.

max E[A rho] subject to |rho - 1| <= e is solved by rho* = 1 + e sign(A - median A)
L = mean of |A| |rho - (1 + e sign(r - median))|,   A = (r - mean) / (std + 1e-6),   e = 0.2

PPO's gradient until the target, the opposite beyond it. Answers on the median have target 1: where most are right, the
right ones are held where they are, and the wrong ones alone are moved.
Choices. As the authors' code. It has a smooth target, 1 - e + 2 e sigmoid((r - median) / (std t)), with t = 1e-4 in its
scripts, where it is the hard one (`objective.temperature`; 1 in its configuration's defaults), e = 0.2 or 0.3, and a
token mean (`objective.aggregate: token_mean`) with KL 0.001. `credit.center: median` is one advantage for both: answers
on the median then have no pull. A group of one, which the code trains by its raw reward, has advantage 0.
"""

from gxpo.algorithms.objectives.surrogate_penalties import ratio_target
from gxpo.parts.definition import Definition

gbpo = Definition(
    name="gbpo",
    doc=__doc__,
    title="Bounded Ratio Reinforcement Learning",
    arxiv="2604.18578",
    authors="Ao, Yunke and Chen, Le and Lee, Bruce and others",
    year=2026,
    formula="L = mean |A| |rho - (1 + e sign(r - median))|, A = (r - mean) / std, e = 0.2",
    evidence="reference-code",
    code="bounded-ratio-rl/bounded_ratio_rl@64ff1cd src/verl/trainer/ppo/core_algos.py ttrl/Qwen2.5-Math/math.sh",
    keys={"objective.surrogate": ratio_target},
)
