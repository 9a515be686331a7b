r"""FG-ExPO: Gaussian weight on prompts of medium accuracy, and a KL coefficient that grows with batch accuracy.

w_q = exp(-(acc_q - 1/2)^2 / (2 sigma^2)) / mean over questions;   beta = beta_0 s(10 (acc - 1/2)), s the logistic

Choices. A reconstruction: the abstract has a Gaussian around 1/2 and a smooth function of the mean accuracy that
loosens the KL when the model fails; sigma 1/4 and the logistic are ours. The paper draws questions by the Gaussian;
here it weighs the loss of those drawn, which is the same in expectation. beta_0 is `objective.kl.coef`, 0 until it is
set; the accuracy is that of the step before.
"""

from gxpo.definition import Definition
from gxpo.objectives.control import ByAccuracy
from gxpo.weighting.group_weight import GroupWeight

fg_expo = Definition(
    name="fg_expo",
    doc=__doc__,
    title="FG-ExPO: Frontier-Guided Exploration-Prioritized Policy Optimization via Adaptive KL and Gaussian "
    "Curriculum",
    arxiv="2605.11403",
    authors="Lin, Mingxiong and Gong, Zhangquan and Tang, Maowen and Li, Qian and Wang, Chuangchuang and Ma, Jian and "
    "Huang, Sutian and Tang, Kai and Lu, Haonan",
    year=2026,
    evidence="reconstruction",
    keys={
        "weight.gaussian_rate": GroupWeight,
        "weight.gaussian_rate.curve": "gaussian_rate",
        "objective.kl.control": ByAccuracy,
    },
)
