r"""V0.5: shrinkage baseline between the group mean and a value prior, weighted by the variance of the mean.

w   = min(1, (v / n) / (mean - V)^2), v = 1/4 the most that the variance of one reward can be, n rollouts
A_i = r_i - (w V + (1 - w) mean)

A prediction within one standard error of the mean replaces it, one that the rollouts contradict is given up; groups of
equal rewards learn.

Choices. From a detailed summary; the code of V0 is public, this one's was not found. There rewards are -1 and 1, and
the variance of a mean of n is 1 / n: 1/4 for 0 and 1 (`credit.variance: prior` is V (1 - V), never more). The paper's
prediction is a pretrained value model's (V0), which gxpo does not have; here V is the task's discounted mean
reward of earlier steps, drawn towards the mean over all tasks (`signal.task_mean`); any signal "baseline" can take its
place, such as `value_probe`. `credit.variance: sample` takes the group's own variance, which is 0 where all rewards are
equal. Rewards from 0 to 1; nothing is divided by a standard deviation. Until anything has been seen the baseline is the
mean. The mean holds the rollout's own reward, as GRPO's. The sequential budget (from 4 up to 16 rollouts, as long
as one more takes 0.0039 off the expected square error) is not built: a stop that looks at rewards biases the mean.
"""

from gxpo.algorithms.credit.baselines import shrinkage_baseline
from gxpo.algorithms.signals.task_mean import TaskMean
from gxpo.parts.definition import Definition

v05 = Definition(
    name="v05",
    doc=__doc__,
    title="V_{0.5}: Generalist Value Model as a Prior for Sparse RL Rollouts",
    arxiv="2603.10848",
    authors="Zhang, Yi-Kai and Sun, Yueqing and Hao, Hongyan and Gu, Qi and Cai, Xunliang and Zhan, De-Chuan and "
    "Ye, Han-Jia",
    year=2026,
    formula="A_i = r_i - (w V + (1 - w) mean), w = min(1, 1 / (4 n) / (mean - V)^2)",
    evidence="secondary",
    keys={"credit": shrinkage_baseline, "credit.variance": "bound", "signal.task_mean": TaskMean},
    paper_defaults={"rollout.group_size": 4},
    cost="two numbers a task in the checkpoint; useful only where tasks repeat",
)
