r"""ETR (mostly ours): elastic trust region: PPO clip range that widens with |A| and with the variance of the group.

e_i = e (1 + 0.5 tanh |A_i|) (1 + 0.5 * 4 p (1 - p));   loss = max(-A rho, -A clip(rho, 1 - e_i, 1 + e_i))

Choices. A reconstruction: the abstract says that bounds scale with the advantage's magnitude and with the group's
variance; their form, both sides alike, and the two factors 0.5 are ours. The pass rate p is read off the z-scored
advantage of a binary outcome, 4 p (1 - p) = 4 A^2 / (1 + A^2)^2, exact for the population std; so within a group the
two factors are tied, and partly oppose.
"""

from gxpo.algorithms.objectives.surrogate_clips import elastic_clip
from gxpo.parts.definition import Definition

etr = Definition(
    name="etr",
    doc=__doc__,
    title="ETR: Outcome-Guided Elastic Trust Regions for Policy Optimization",
    arxiv="2601.03723",
    authors="Zhang, Shijie and Zhang, Kevin and Gu, Zheyuan and Guo, Xiang and Guo, Rujun and Liu, Shaoyu and "
    "Jiang, Guanjun and Wang, Xiaozhao",
    year=2026,
    evidence="reconstruction",
    keys={"objective.surrogate": elastic_clip},
)
