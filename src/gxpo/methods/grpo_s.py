r"""GRPO-S (DR-IRL): group weights by difficulty: distance to a demonstration and reward gap to it.

w = s(d_g) / s(mean d) * s(mean of the gaps that are no outliers) / s(mean gap), s the logistic;   loss = GRPO's times w
d_g = 1 - mean cos(e_i, e_demonstration);   gap_g = r_demonstration - mean_g r;   means over the step's groups

Choices. From two detailed summaries, which agree; no code was found. The paper compares within a category of harm, one
reward model for each: here within a step. It takes cosines clause by clause with a text encoder, the nearest clause for
each: here e is the policy's mean hidden state. Gaps further than 2 standard deviations from their mean are outliers
(the paper's threshold is not known), so that with few groups the second factor is 1. The demonstrations are those that
the rollout brings (`grpo_s+luffy`); without one, a group's right attempts take its place in d, and in the gap a reward
of 1. The reward models that they learn by inverse reinforcement learning are yours to bring, as `reward`.
"""

from gxpo.algorithms.signals.hidden_states import mean_hidden
from gxpo.algorithms.weighting.group_weight import GroupWeight
from gxpo.parts.definition import Definition

grpo_s = Definition(
    name="grpo_s",
    doc=__doc__,
    title="Inverse Reinforcement Learning with Dynamic Reward Scaling for LLM Alignment",
    arxiv="2503.18991",
    authors="Cheng, Ruoxi and Ma, Haoxuan and Wang, Weixin and Duan, Ranjie and Liu, Jiexi and Jia, Xiaoshuang and "
    "Qin, Simeng and Cao, Xiaochun and Liu, Yang and Jia, Xiaojun",
    year=2025,
    formula="w = s(d_g) / s(mean d) * s(mean kept gap) / s(mean gap); L = L_GRPO with w",
    evidence="secondary",
    keys={
        "weight.hardness": GroupWeight,
        "weight.hardness.statistic": "dissimilarity",
        "weight.hardness.curve": "hardness",
        "signal.mean_hidden": mean_hidden,
    },
    cost="a forward pass over the rollouts before the update",
)
