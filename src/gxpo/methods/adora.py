r"""ADORA: length-based advantage weight: 1 if the longest correct rollout exceeds the mean wrong length, else 0.1.

w = 1 if max_correct L > mean_wrong L, else 0.1, for the whole group;   A' = w A

Choices. The rule of the code for texts; wrong answers that were cut off are not in the mean (there: of 4054 tokens and
more, just below the limit). Without wrong answers w = 1, without correct ones 0.1; the code for images has it the other
way round, which a centred advantage does not show. The paper's rule by difficulty is in neither code and not built.
"""

from gxpo.algorithms.weighting.group_weight import GroupWeight
from gxpo.parts.definition import Definition

adora = Definition(
    name="adora",
    doc=__doc__,
    title="ADORA: Training Reasoning Models with Dynamic Advantage Estimation on Reinforcement Learning",
    arxiv="2602.10019",
    authors="Ren, Qingnan and Huang, Shiting and Fang, Zhen and Chen, Zehui and Chen, Lin and Li, Lijun and Zhao, Feng",
    year=2026,
    evidence="reference-code",
    keys={
        "weight.length_signal": GroupWeight,
        "weight.length_signal.statistic": "long_pays",
        "weight.length_signal.curve": "one_or",
    },
    code="ShadeCloak/ADORA@c518485324b136e0fea6a7f280c1d224f94d13d5 ADORA/verl/trainer/ppo/core_algos.py "
    "ADORA_VL/openrlhf/trainer/ppo_utils/experience_maker_vl.py",
)
