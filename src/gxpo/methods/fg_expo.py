r"""FG-ExPO: questions of middling accuracy count most, and the KL coefficient grows with the step's accuracy.

w_q = exp(-(acc_q - 1/2)^2 / (2 sigma^2)) / mean over questions;   beta = beta_0 s(10 (acc - 1/2)), s the logistic

Choices. A reconstruction: the abstract has a Gaussian around 1/2 and a smooth function of the mean accuracy that
loosens the KL when the model fails; sigma 1/4 and the logistic are ours. The paper draws questions by the Gaussian;
here it weighs the loss of those drawn, which is the same in expectation. beta_0 is `objective.kl.coef`, 0 until it is
set; the accuracy is that of the step before.
"""

from gxpo.keys import Definition
from gxpo.objectives.control import ByAccuracy
from gxpo.weighting.group_weight import GroupWeight

fg_expo = Definition(
    name="fg_expo",
    title="FG-ExPO: Frontier-Guided Exploration-Prioritized Policy Optimization via Adaptive KL and Gaussian "
    "Curriculum",
    arxiv="2605.11403",
    authors="Lin, Mingxiong and Gong, Zhangquan and Tang, Maowen and Li, Qian and Wang, Chuangchuang and Ma, Jian and "
    "Huang, Sutian and Tang, Kai and Lu, Haonan",
    year=2026,
    idea="a failing policy is let loose, a succeeding one held; questions at the frontier weigh most",
    formula="w_q = Gaussian(acc_q; 1/2, sigma) / mean; beta = beta_0 f(acc), f rising from 0 to 1",
    evidence="reconstruction",
    keys={
        "weight.gaussian_rate": GroupWeight,
        "weight.gaussian_rate.curve": "gaussian_rate",
        "objective.kl.control": ByAccuracy,
    },
    choices="sigma 1/4; logistic of slope 10; weights for draws; the last step's accuracy; no KL until its coef is set",
)
