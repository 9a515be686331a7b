r"""DRA-GRPO: diversity-aware reward adjustment: semantically similar rollouts share their reward.

r'_i = r_i / sum_{j in g} cos(e_i, e_j);   A as in GRPO (or, with dr_grpo, as in Dr. GRPO) over r'

Choices. Similarities are inside the group, as in the paper; the code mixes the prompts of a local batch. Sums below 1
(others that point away) are held at 1, so that no reward grows or changes sign. e is the mean of the policy's own last
hidden states over the answer; the authors' is a sentence encoder (jina, nomic): give your own as a signal part that
provides "embedding", in the place of `signal.mean_hidden`.
"""

from gxpo.algorithms.credit.redundancy import DiversityAdjusted
from gxpo.algorithms.signals.hidden_states import mean_hidden
from gxpo.parts.definition import Definition

dra_grpo = Definition(
    name="dra_grpo",
    doc=__doc__,
    title="DRA-GRPO: Exploring Diversity-Aware Reward Adjustment for R1-Zero-Like Training of Large Language Models",
    arxiv="2505.09655",
    authors="Chen, Xiwen and Zhu, Wenhui and Qiu, Peijie and Dong, Xuanzhao and Wang, Hao and Wu, Haiyu and Li, Huayu "
    "and Sotiras, Aristeidis and Wang, Yalin and Razi, Abolfazl",
    year=2025,
    evidence="reference-code",
    keys={"credit": DiversityAdjusted, "signal.mean_hidden": mean_hidden},
    paper_defaults={"credit.eps": 1e-4, "rollout.group_size": 6, "optim.lr": 1e-6, "sampling.temperature": 0.7},
    cost="a forward pass over the rollouts before the update",
    code="xiwenc1/DRA-GRPO@088266167eb844482be2f0b98b5a60f7951b7050 src/open_r1/trl/trainer/grpo_trainer.py "
    "recipes/dra_grpo.yaml",
)
