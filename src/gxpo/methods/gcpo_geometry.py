r"""GCPO of GeometryZero: a construction is rewarded where attempts with one are right more often, else punished.

r += 0.5 M [constructs];   M = sign(p_with - p_without) over the group's attempts, 0 where they differ by eps at most

Choices. From a summary and public reviews: weights and eps are not given there; 0.5 and 0 are ours. The paper compares
two groups, sampled with and without an instruction to construct; here the attempts of one group that do and that do
not. A construction is <aux>...</aux> in the text: `reward.add.constructs.pattern`. Its reward for long answers is left
out. With 4 attempts of each kind one verdict moves the gap by 0.25. Another GCPO is `gcpo_gold`.
"""

from gxpo.environments.rewards.feature import Feature
from gxpo.parts.definition import Definition

gcpo_geometry = Definition(
    name="gcpo_geometry",
    doc=__doc__,
    title="GeometryZero: Improving Geometry Solving for LLM with Group Contrastive Policy Optimization",
    arxiv="2506.07160",
    authors="Wang, Yikun and Wang, Yibin and Wang, Dianyi and Peng, Zimian and Guo, Qipeng and Tao, Dacheng and "
    "Wang, Jiaqi",
    year=2025,
    formula="r += 0.5 M [constructs], M = sign(p_with - p_without) in the group",
    evidence="secondary",
    keys={
        "reward.add.constructs": Feature,
        "reward.add.constructs.pattern": r"<aux>.*</aux>",
        "reward.add.constructs.sign": "contrast",
        "reward.add.constructs.coef": 0.5,
    },
)
