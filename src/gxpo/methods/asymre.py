r"""AsymRE: off-policy REINFORCE with a baseline slightly below the group mean.

A_i = r_i - (mean_g r + delta), delta = -0.1

Its sum over a group is -G delta > 0: off policy, a baseline below the mean keeps the policy from collapsing, one above
it does not; delta = 0 is Dr. GRPO's advantage. A group of equal outcomes has -delta = 0.1 each.
Choices. The advantage only, with a port's delta: the paper's loss is -A log pi without a ratio, which on policy has the
base's gradient. A group of one has 0. `asymre@trinity` is a port's: the raw reward for a group of one, -A log pi, a
mean over tokens. QAE (arXiv 2509.22611), which moves the baseline to a quantile instead, is `{"credit.center":
"quantile"}` of the base.
"""

from gxpo.parts.definition import Definition

asymre = Definition(
    name="asymre",
    doc=__doc__,
    title="Asymmetric REINFORCE for Off-Policy Reinforcement Learning: Balancing Positive and Negative Rewards",
    arxiv="2506.20520",
    authors="Arnal, Charles and Narozniak, Gaetan and Cabannes, Vivien and others",
    year=2025,
    evidence="secondary",
    keys={"credit.scale": "none", "credit.shift": -0.1},
)
