r"""VAS: variance-aware sampling: half of the draws in proportion to the variance of a task's verdicts, half uniform.

w_q = p_q (1 - p_q), stretched over the tasks to [0, 1];   P(q) = 1/2 / N + 1/2 w_q / sum w
p_q = right / verdicts of the task's newest visit

Choices. From the authors' code, whose released settings score by the variance of 8 answers alone. It answers the
whole data set anew every 4 steps; here p is what training saw last, and 1/2 for a task that was never drawn, so that
those come first. Half of its batch comes from each kind of draw; here that holds on average. The paper's second
score, the diversity of answers, is left out: the code adds self-BLEU, which is the opposite. Its momentum of 1.0,
"none", keeps old weights; its script sets 0, as here (`tasks.sampler.discount`).
"""

from gxpo.environments.tasks.task_scores import variance
from gxpo.parts.definition import Definition

vas = Definition(
    name="vas",
    doc=__doc__,
    title="MMR1: Enhancing Multimodal Reasoning with Variance-Aware Sampling and Open Resources",
    arxiv="2509.21268",
    authors="Leng, Sicong and Wang, Jing and Li, Jiaxi and Zhang, Hao and Hu, Zhiqiang and Zhang, Boqiang and others",
    year=2025,
    evidence="reference-code",
    code="LengSicong/MMR1@d8161a0c0bb2933cae38b782aa75181663328de5 verl/curriculum/samplers.py "
    "verl/curriculum/metrics.py verl/trainer/ray_trainer.py examples/mmr1.yaml",
    keys={
        "tasks.sampler": variance,
        "tasks.sampler.uniform": 0.5,
        "tasks.sampler.stretch": True,
        "tasks.sampler.discount": 0.0,
        "tasks.sampler.prior": 0.0,
    },
    cost="none in samples; a few numbers a task in the checkpoint; only where tasks repeat: a list, or `pool`",
)
