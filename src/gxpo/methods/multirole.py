r"""MultiRole-R1: lexical diversity of a reasoning beside its correctness.

r = .9 [correct] + .1 D, D the mean of eight signals of lexical diversity;   A as in GRPO

Choices. From the paper (arXiv 2507.20187v4, section 3.2, appendices B.2 and F). D counts in every group, right or wrong
alike: where all are right, D .4, .6, .5 gives A -1, 1, 0, noise at full scale; `reward.shape.diversity.groups: mixed`
adds it in groups with a success and a failure alone. The paper normalises D by length in a way that it does not state;
here a text of fewer than 20 words is paid less in proportion (`least`). The signals are easily gamed. Its supervised
part on texts of several roles, and its accuracy as a mean over roles, are left out.
"""

from gxpo.environments.rewards.shape import Shape
from gxpo.parts.definition import Definition

multirole = Definition(
    name="multirole",
    doc=__doc__,
    title="Diversity-Enhanced Reasoning for Subjective Questions",
    arxiv="2507.20187",
    authors="Wang, Yumeng and Fan, Zhiyuan and Liu, Jiayu and Huang, Jen-tse and Fung, Yi R.",
    year=2025,
    evidence="paper",
    keys={
        "scoring.weights": {"correct": 0.9, "match": 0.0},
        "scoring.options": {"match": {"metric": "lexical_diversity", "pattern": None}},
        "reward.shape.diversity": Shape,
        "reward.shape.diversity.function": "added_component",
        "reward.shape.diversity.component": "match",
    },
)
