r"""FG-ExPO: questions of medium accuracy are drawn more often, and the KL coefficient grows with the step's accuracy.

P(q) ~ exp(-(a_q - 1/2)^2 / (2 sigma^2)),  a_q <- .9 a_q + .1 acc_q at each visit, from 1/2;   sigma 0.35
beta = .02 (tanh(acc) + 1) / 2

Choices. From the paper (arXiv 2605.11403v1, eqs. 4 to 8 and section 4.1). Its accuracy is that of the step itself, here
of the step before, since a coefficient holds for a whole step. To weigh the loss of questions that come in any case
instead of drawing them: `weight.NAME: group_weight`, `weight.NAME.curve: gaussian_rate`.
"""

from gxpo.algorithms.objectives.control import ByAccuracy
from gxpo.environments.tasks.task_scores import gaussian
from gxpo.parts.definition import Definition

fg_expo = Definition(
    name="fg_expo",
    doc=__doc__,
    title="FG-ExPO: Frontier-Guided Exploration-Prioritized Policy Optimization via Adaptive KL and Gaussian "
    "Curriculum",
    arxiv="2605.11403",
    authors="Lin, Mingxiong and Gong, Zhangquan and Tang, Maowen and Li, Qian and Wang, Chuangchuang and Ma, Jian and "
    "Huang, Sutian and Tang, Kai and Lu, Haonan",
    year=2026,
    evidence="paper",
    keys={
        "tasks.sampler": gaussian,
        "tasks.sampler.discount": 0.9,
        "objective.kl.coef": 0.02,
        "objective.kl.control": ByAccuracy,
    },
    paper_defaults={"rollout.group_size": 8},
    cost="a frozen reference model; two numbers a task in the checkpoint; useful only where tasks repeat",
)
