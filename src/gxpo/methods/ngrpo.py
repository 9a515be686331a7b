r"""NGRPO: virtual maximum-reward rollout in each group, so that all-wrong groups learn; asymmetric clip.

mean+, std+ over r_1 ... r_G and r_max (one degree of freedom);   A_i = (r_i - mean+) / (std+ + 1e-6)
L = mean over tokens of max(-A rho, -A clip(rho, 1 - 0.16, 1 + 0.24))

A group of G equal rewards below r_max has A = -1 / sqrt(G + 1) each; one of rewards r_max has 0.
Choices. r_max is `credit.value`, 1: set it to the best outcome there can be where rewards are shaped or summed. The
code drops all-correct groups before the loss; here they stay, with advantage 0, in the token mean's denominator. A
group of one is measured against the virtual rollout (the code gives it its raw reward).
"""

from gxpo.algorithms.credit.baselines import pseudo_rollouts
from gxpo.parts.definition import Definition

ngrpo = Definition(
    name="ngrpo",
    doc=__doc__,
    title="NGRPO: Negative-enhanced Group Relative Policy Optimization",
    arxiv="2509.18851",
    authors="Nan, Gongrui and Chen, Siye and Huang, Jing and others",
    year=2025,
    formula="A = (r - mean+) / (std+ + eps) over the group and r_max; clip 0.16 / 0.24",
    evidence="reference-code",
    keys={
        "credit": pseudo_rollouts,
        "objective.clip_low": 0.16,
        "objective.clip_high": 0.24,
        "objective.aggregate": "token_mean",
    },
    paper_defaults={"rollout.group_size": 8, "optim.lr": 1e-6},
    code="nangongrui-ngr/NGRPO@e7a380415a64cd8ac102504c38a5f86069022f35 verl/trainer/ppo/core_algos.py "
    "train_scripts/train_qwen2.5-math-7b_ngrpo.sh",
)
