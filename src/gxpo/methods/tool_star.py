r"""Tool-Star: a bonus for right answers found with several tools, and a penalty for actions that can't be read.

r += 0.1 [right and at least two tools called] - [some action malformed]

Choices. In the code an answer is right where its F1 is above 0, -1 takes the place of the reward where the format is
wrong, and the strings of two named tools count, executed or not; here the verdict decides, the penalty is added, and
calls that the environment was given count. The second stage, DPO on pairs that the policy ranks by this reward, is not
part of it: `gxpo methods dpo`. Needs an environment that notes the calls of turns, as toolqa.
"""

from gxpo.environments.rewards.feature import Feature
from gxpo.parts.definition import Definition

tool_star = Definition(
    name="tool_star",
    doc=__doc__,
    title="Tool-Star: Empowering LLM-Brained Multi-Tool Reasoner via Reinforcement Learning",
    arxiv="2505.16410",
    authors="Dong, Guanting and Chen, Yifei and Li, Xiaoxi and Jin, Jiajie and Qian, Hongjin and Zhu, Yutao and "
    "Mao, Hangyu and Zhou, Guorui and Dou, Zhicheng and Wen, Ji-Rong",
    year=2025,
    formula="r += 0.1 [right and at least two tools called] - [some action malformed]",
    evidence="reference-code",
    keys={
        "reward.add.tools": Feature,
        "reward.add.tools.of": "several_tools",
        "reward.add.tools.coef": 0.1,
        "reward.add.tools.only": "correct",
        "reward.add.unread": Feature,
        "reward.add.unread.of": "malformed",
        "reward.add.unread.coef": -1.0,
    },
    code="dongguanting/Tool-Star@d12222c7e54a63a5c0a266eb72170e4f22c526ef "
    "Tool_Star_RL/src/verl/verl/utils/reward_score/re_search.py",
)
