r"""REAL: rewards as labels: logistic classification loss per group on mean log-ratios.

s_i = mean_t (log policy - log old)
L = sum over groups with both labels [log(1 + sum_N e^(s/tau)) + log(1 + sum_P e^(-s/tau))] / all groups,   tau 0.5

Gradient weights lie in (0, 1/tau): no trajectory dominates.

Choices. The label is the verifier's verdict; the code takes rewards equal to 1 and 0, and drops the others without a
word. Groups without both labels are not run and stay in the denominator, as in the code. Its product form and its
cross-entropy variant are not here. Advantages are not read.
"""

from gxpo.algorithms.objectives.sequence_losses import Classification
from gxpo.parts.definition import Definition

real = Definition(
    name="real",
    doc=__doc__,
    title="Rewards as Labels: Revisiting RLVR from a Classification Perspective",
    arxiv="2602.05630",
    authors="Zhai, Zepeng and Chen, Meilin and Zhao, Jiaxuan and Qian, Junlang and Shen, Lei and Lu, Yuan",
    year=2026,
    formula="L = mean_g log(1 + sum_N e^(s/tau)) + log(1 + sum_P e^(-s/tau)), s = mean_t log(pi/old)",
    evidence="reference-code",
    keys={"objective": Classification},
    paper_defaults={"rollout.group_size": 8, "optim.lr": 2e-6},
    refuses={"objective.kl.place": ("reward",)},
    code="Red-RL/REAL@1c30726a1c7606e717091b4b8cf1fc156a06039f verl/verl/trainer/ppo/core_algos.py "
    "scripts/train/1.5b_real.sh",
)
