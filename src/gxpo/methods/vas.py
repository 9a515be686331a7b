r"""VAS: variance-aware sampling: half of the draws in proportion to the variance of a task's verdicts, half uniform.

P(q) = 1/2 / N + 1/2 p_q (1 - p_q) / sum p (1 - p),   p_q = (1 + right) / (2 + verdicts)

Choices. From a summary of the authors' code (LengSicong/MMR1), whose defaults score by the variance alone. There rates
come from answers to the whole data set, anew every 4 steps, and scores are stretched to [0, 1], which gives the worst
task weight 0; here they are those of training, discounted, under a Beta prior. The paper's second score, the diversity
of answers, is left out: the code adds self-BLEU, which is the opposite. Its momentum of 1.0, "none", keeps old weights.
"""

from gxpo.definition import Definition
from gxpo.tasks.task_scores import variance

vas = Definition(
    name="vas",
    doc=__doc__,
    title="MMR1: Enhancing Multimodal Reasoning with Variance-Aware Sampling and Open Resources",
    arxiv="2509.21268",
    authors="Leng, Sicong and Wang, Jing and Li, Jiaxi and Zhang, Hao and Hu, Zhiqiang and Zhang, Boqiang and others",
    year=2025,
    evidence="secondary",
    keys={"tasks.sampler": variance, "tasks.sampler.uniform": 0.5},
    cost="none in samples; a few numbers a task in the checkpoint; only where tasks repeat: a list, or `pool`",
)
