r"""ETR: the clip gives way where a token's credit is large and where a task is neither solved nor hopeless.

e_i = e (1 + 0.5 tanh |A_i|) (1 + 0.5 * 4 p (1 - p));   loss = max(-A rho, -A clip(rho, 1 - e_i, 1 + e_i))

Choices. A reconstruction: the abstract says that bounds scale with the advantage's magnitude and with the group's
variance; their form, both sides alike, and the two factors 0.5 are ours. The pass rate p is read off the z-scored
credit of a binary outcome, 4 p (1 - p) = 4 A^2 / (1 + A^2)^2, exact for the population std; so within a group the two
factors are tied, and partly oppose.
"""

from gxpo.keys import Definition
from gxpo.objectives.surrogate_clips import ElasticClip

etr = Definition(
    name="etr",
    title="ETR: Outcome-Guided Elastic Trust Regions for Policy Optimization",
    arxiv="2601.03723",
    authors="Zhang, Shijie and Zhang, Kevin and Gu, Zheyuan and Guo, Xiang and Guo, Rujun and Liu, Shaoyu and "
    "Jiang, Guanjun and Wang, Xiaozhao",
    year=2026,
    idea="trust regions widen with the magnitude of the advantage and the variance of the group",
    formula="clip at 1 +- e (1 + a tanh |A|) (1 + b 4p(1 - p)); a = b = 0.5",
    evidence="reconstruction",
    keys={"objective.surrogate": ElasticClip},
    choices="the form and the factors of the widening; both bounds alike; p read off the credit",
)
