r"""Skywork R1V2 (SSB): selective sample buffer: zero-advantage rollouts are made up for by replay in proportion to |A|.

stored: groups of unequal rewards.   For every fresh rollout with A = 0 one stored one, P(i) in proportion to |A_i|
L = mean over fresh and drawn rows of GRPO's clipped loss, the drawn rows' A and ratio those of their own group and time

Choices. From the report (the version of June 2025 in SkyworkAI/Skywork-R1V, whose code is evaluation alone): samples
of non-zero advantage are stored, drawn by weights in proportion to |A|, and come back into updates. It does not state
how many are drawn, nor the ratio of a stored one: one for each fresh rollout without advantage, over the behaviour
policy (`objective.ratio_over: behaviour`), are ours. Only the buffer is built: the mixed preference optimisation
before GRPO, the reward model beside the rules, and the buffer as a filter of prompts beforehand are not. Any stored
task's rollouts may come back. A is recomputed in the group that it came from, whose other members only enter its
statistics. The newest 1024 groups are stored (`rollout.max_groups`).
"""

from gxpo.parts.definition import Definition
from gxpo.sampling.rollouts.stored_groups import GroupReplay

r1v2_ssb = Definition(
    name="r1v2_ssb",
    doc=__doc__,
    title="Skywork R1V2: Multimodal Hybrid Reinforcement Learning for Reasoning",
    arxiv="2504.16656",
    authors="Chris and Wei, Yichen and Peng, Yi and Wang, Xiaokun and Qiu, Weijie and Shen, Wei and Xie, Tianyidan and "
    "Pei, Jiangbo and Zhang, Jianhao and Hao, Yunzhuo and Song, Xuchen and Liu, Yang and Zhou, Yahui",
    year=2025,
    formula="top up a batch with stored (o_i, A_i), P(i) ~ |A_i|, one for each fresh A = 0",
    evidence="paper",
    keys={"rollout": GroupReplay, "objective.ratio_over": "behaviour"},
    cost="more trajectories in the update; about 70 bytes of memory for every stored token",
)
