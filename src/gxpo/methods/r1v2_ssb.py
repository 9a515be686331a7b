r"""Skywork R1V2 (SSB): selective sample buffer: zero-advantage rollouts are made up for by replay in proportion to |A|.

stored: groups of unequal rewards.   For every fresh rollout with A = 0 one stored one, P(i) in proportion to |A_i|
L = mean over fresh and drawn rows of GRPO's clipped loss, the drawn rows' A and ratio those of their own group and time

Choices. From a detailed summary, which has the weights |A| but not the number drawn; the authors' repository has no
training code. Only the buffer is built: the report's mixed preference optimisation before GRPO, its reward model, and
the buffer as a filter of prompts beforehand are not. Any stored task's rollouts may come back. Ratios are over the
behaviour policy (`objective.ratio_over: behaviour`), old ones and fresh ones alike. A is recomputed in the group that
it came from, whose other members only enter its statistics. The newest 1024 groups are stored (`rollout.max_groups`).
"""

from gxpo.definition import Definition
from gxpo.rollouts.stored_groups import GroupReplay

r1v2_ssb = Definition(
    name="r1v2_ssb",
    doc=__doc__,
    title="Skywork R1V2: Multimodal Hybrid Reinforcement Learning for Reasoning",
    arxiv="2504.16656",
    authors="Chris and Wei, Yichen and Peng, Yi and Wang, Xiaokun and Qiu, Weijie and Shen, Wei and Xie, Tianyidan and "
    "Pei, Jiangbo and Zhang, Jianhao and Hao, Yunzhuo and Song, Xuchen and Liu, Yang and Zhou, Yahui",
    year=2025,
    formula="top up a batch with stored (o_i, A_i), P(i) ~ |A_i|, one for each fresh A = 0",
    evidence="secondary",
    keys={"rollout": GroupReplay, "objective.ratio_over": "behaviour"},
    cost="more trajectories in the update; about 70 bytes of memory for every stored token",
)
