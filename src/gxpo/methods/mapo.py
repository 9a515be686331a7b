r"""MAPO: the more certain a group's outcome, the more its credit is scaled by the mean instead of the std.

l = 1 - 4 p (1 - p), p = share of the group that is right
A_i = (1 - l) (r_i - mean) / (std + eps) + l (r_i - mean) / (mean + eps)

At p = 1/2 this is GRPO (population std), towards p = 0 and 1 it is MaxRL, whose advantage the second term is.
Choices. Population std, as the closed forms need it; eps 1e-6 on both. An all-wrong group, where the mean is 0, has 0
(the paper is silent). p comes from the verdicts. Not the dialogue method of the same name (arXiv 2603.06194).
"""

from gxpo.credit.mixed_scale import MixedScale
from gxpo.keys import Definition

mapo = Definition(
    name="mapo",
    title="MAPO: Mixed Advantage Policy Optimization",
    arxiv="2509.18849",
    authors="Huang, Wenke and Zhang, Quan and Fang, Yiyang and others",
    year=2025,
    idea="percent deviation from the mean for groups of certain outcome, z-score for open ones",
    formula="A = (1 - l) (r - mean) / std + l (r - mean) / mean, l = 1 - 4 p (1 - p)",
    evidence="secondary",
    keys={"credit": MixedScale},
    choices="population std; all-wrong groups have 0; p from the verdicts",
)
