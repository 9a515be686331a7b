r"""OPO: the variance-optimal baseline when a trajectory's squared score norm grows with its length.

A_i = r_i - sum_j L_j r_j / sum_j L_j

sum_i L_i A_i = 0; with equal lengths this is Dr. GRPO's advantage. Exact on policy only: one update a step.
"""

from gxpo.credit import LengthWeighted
from gxpo.keys import Definition

opo = Definition(
    name="opo",
    title="On-Policy RL with Optimal Reward Baseline",
    arxiv="2505.23585",
    authors="Hao, Yaru and Dong, Li and Wu, Xun and others",
    year=2025,
    idea="length-weighted mean as the baseline of least variance; no std",
    formula="A = r - sum_j L_j r_j / sum_j L_j",
    evidence="secondary",
    keys={"credit": LengthWeighted},
    choices="a group of one has credit 0, where verl's baseline of one is 0 and the reward stays",
)
