r"""MultiRole-R1: lexical diversity of a reasoning beside its correctness, in mixed groups alone.

r = .9 [correct] + .1 D, D the mean of eight signals of lexical diversity;   A as in GRPO

Choices. D is added only in groups with a success and a failure: in a group where all are right, D .4, .6, .5 would give
A -1, 1, 0, noise at full scale (`reward.shape.diversity.groups: all` is the paper's). The eight signals and their equal
weights are a reconstruction, and easily gamed. The supervised part on texts of several roles is left out.
"""

from gxpo.definition import Definition
from gxpo.rewards.shape import Shape

multirole = Definition(
    name="multirole",
    doc=__doc__,
    title="Diversity-Enhanced Reasoning for Subjective Questions",
    arxiv="2507.20187",
    authors="Wang, Yumeng and Fan, Zhiyuan and Liu, Jiayu and Huang, Jen-tse and Fung, Yi R.",
    year=2025,
    evidence="secondary",
    keys={
        "scoring.weights": {"correct": 0.9, "match": 0.0},
        "scoring.options": {"match": {"metric": "lexical_diversity", "pattern": None}},
        "reward.shape.diversity": Shape,
        "reward.shape.diversity.function": "added_component",
        "reward.shape.diversity.component": "match",
        "reward.shape.diversity.groups": "mixed",
    },
)
