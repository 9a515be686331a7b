r"""DGRPO (VITAL): difficulty-aware GRPO: groups of high mean reward weigh less.

w = 1/2 + 1/2 clamp((easy - D) / (easy - hard), 0, 1), D = the group's mean outcome;   loss = GRPO's times w
with `vital_dgrpo@paper` also S = clamp((IoU - low) / (high - low), 0, 1) in place of IoU

Choices. The paper multiplies the rewards by w and then normalises by the group's std, which takes w out again: here w
weighs the loss. Its rewards sum to 3 (answer, format, tool), hard = 1 and easy = 2 (`vital_dgrpo@paper`); for outcomes
from 0 to 1 the same thirds are 1/3 and 2/3. The bounds low and high, a pair for each task, are not given: they are 0
and 1, which change nothing, until you set `reward.shape.rescaled.low` and `.high`.
"""

from gxpo.algorithms.weighting.group_weight import GroupWeight
from gxpo.environments.rewards.shape import Shape
from gxpo.parts.definition import Definition

vital_dgrpo = Definition(
    name="vital_dgrpo",
    doc=__doc__,
    title="Thinking With Videos: Multimodal Tool-Augmented Reinforcement Learning for Long Video Reasoning",
    arxiv="2508.04416",
    authors="Zhang, Haoji and Gu, Xin and Li, Jiawen and Ma, Chixiang and Bai, Sule and Zhang, Chubin and Zhang, Bowen "
    "and Zhou, Zhichao and He, Dongliang and Tang, Yansong",
    year=2025,
    formula="w = 0.5 + 0.5 clamp((easy - mean_g r) / (easy - hard), 0, 1); L = L_GRPO with w",
    evidence="secondary",
    keys={
        "weight.mean_outcome": GroupWeight,
        "weight.mean_outcome.statistic": "mean_outcome",
        "weight.mean_outcome.curve": "ramp",
    },
    paper_defaults={
        "weight.mean_outcome.hard": 1.0,
        "weight.mean_outcome.easy": 2.0,
        "reward.shape.rescaled": Shape,
        "reward.shape.rescaled.function": "rescaled",
        "rollout.group_size": 8,
        "optim.lr": 1e-6,
    },
)
