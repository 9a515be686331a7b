r"""GRPO-S (DR-IRL): hard tasks weigh more; hard is what is unlike a demonstration, and what earns less than it.

w = (1 + a h_unlike) (1 + b h_gap);   loss = GRPO's times w
h_unlike = 1 - mean cos(e_i, e_demonstration);   h_gap = (r_demonstration - mean_g r) / the step's largest such gap

Choices. Reconstructed from the abstracts. They scale the reward, which the group's std would take out again: here w
weighs the loss. a = b = 1. The demonstrations are those that the rollout brings (`grpo_s+luffy`); without one, a
group's right attempts stand for it in h_unlike, and in h_gap a reward of 1. e is the policy's mean hidden state
(theirs: a text encoder); the reward models that they learn by inverse reinforcement learning are yours to bring, as
`reward`.
"""

from gxpo.keys import Definition
from gxpo.signals.mean_hidden import MeanHidden
from gxpo.weighting.hardness import Hardness

grpo_s = Definition(
    name="grpo_s",
    title="Inverse Reinforcement Learning with Dynamic Reward Scaling for LLM Alignment",
    arxiv="2503.18991",
    authors="Cheng, Ruoxi and Ma, Haoxuan and Wang, Weixin and Duan, Ranjie and Liu, Jiexi and Jia, Xiaoshuang and "
    "Qin, Simeng and Cao, Xiaochun and Liu, Yang and Jia, Xiaojun",
    year=2025,
    idea="groups far from a demonstration, in words and in reward, weigh more",
    formula="w = (1 + h_unlike)(1 + h_gap); L = L_GRPO with w",
    evidence="reconstruction",
    keys={"weight.hardness": Hardness, "signal.mean_hidden": MeanHidden},
    choices="a weight after the normalisation, which would cancel it; right attempts stand in for demonstrations",
    cost="a forward pass over the rollouts before the update",
)
