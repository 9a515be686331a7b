r"""ConciseR: length is charged only in groups in which every attempt is right.

r = 1 + (1 - |o| / L_max) in a group that is all right;   r = [right] in the others

Choices. The second of its two stages; the first is GRPO with a raised clip, dynamic sampling and an entropy bonus
(`from_run` begins from it). Its code is a README, the formula that of summaries. The 1 in the parentheses is the same
for a group and left out. A filter that drops all-right groups (dynamic sampling) would leave nothing. Divided by the
group's deviation, a difference of a few tokens has the full scale: `credit.scale: none` keeps it small.
"""

from gxpo.environments.rewards.length import Length
from gxpo.parts.definition import Definition

conciser = Definition(
    name="conciser",
    doc=__doc__,
    title="Walk Before You Run! Concise LLM Reasoning via Reinforcement Learning",
    arxiv="2505.21178",
    authors="Song, Mingyang and Zheng, Mao",
    year=2025,
    formula="r = 1 + (1 - |o| / L_max) in a group that is all right; r = [right] in the others",
    evidence="secondary",
    keys={
        "reward.add.length": Length,
        "reward.add.length.coef": 1.0,
        "reward.add.length.of": "all_right_groups",
        "objective.aggregate": "token_mean",
    },
)
