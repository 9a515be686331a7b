r"""GBPO: the ratio is regressed on the best one within bounds, with credit centred by the group's median.

max E[A rho] subject to |rho - 1| <= e is solved by rho* = 1 + e sign(A), if A is centred by its median.
A_i = (r_i - median) / std;   L = mean of |A| |rho - (1 + e sign(A))|,   e = 0.2

PPO's gradient until the target, the opposite beyond it.
Choices. The paper also weighs by GRPO's |A| and keeps the median for the sign: here one credit is both. Rewards of 0
and 1 with a right majority have median 1: the right answers have credit 0, only the wrong ones teach (and the other
way round); the paper finds the mean (`credit.center: mean`) about as good. sign(0) is 0. Not the smooth target.
"""

from gxpo.keys import Definition
from gxpo.objectives.gate_target import RatioTarget

gbpo = Definition(
    name="gbpo",
    title="Bounded Ratio Reinforcement Learning",
    arxiv="2604.18578",
    authors="Ao, Yunke and Chen, Le and Lee, Bruce and others",
    year=2026,
    idea="the best policy of bounded ratio is known in closed form: regress the ratio on it",
    formula="L = mean |A| |rho - (1 + e sign(A))|, A = (r - median) / std, e = 0.2",
    evidence="paper",
    keys={"objective.gate": RatioTarget, "credit.center": "median"},
    choices="one credit for sign and weight; the hard target, not its smoothing by a temperature",
)
