r"""ASPO (tool-integrated reasoning): advantage shaping for early code use, clipped to a share of |A|.

right answers of a group that use code:  A_i += clip(delta (p_i - mean p) / mean L, -k |A_i|, k |A_i|)
p the token at which the code begins, L the answer's length, delta = -2, k = 0.7: the sign of A never turns

Choices. The paper trains by DAPO: `aspo+dapo`. Its text has delta -2 with k 0.7 (and -2.5 with 0.9), the legends of
its figures -1.5 with 0.7 (and -2 with 0.9): the text's are taken. The bonus is a weight on the loss, w A = A + bonus:
the same for clips. Code is found by a regular expression in the decoded answer (`signal.first_match.pattern`). Means
are over the group's right answers with code. With A of 0, as in a group of right answers only, there is no bonus.
"""

from gxpo.algorithms.signals.texts import first_match
from gxpo.algorithms.weighting.token_weight import TokenWeight
from gxpo.parts.definition import Definition

aspo = Definition(
    name="aspo",
    doc=__doc__,
    title="Understanding Tool-Integrated Reasoning",
    arxiv="2508.19201",
    authors="Lin, Heng and Xu, Zhongwen",
    year=2025,
    formula="A += clip(delta (p - mean p) / mean L, -k|A|, k|A|) for right answers with code",
    evidence="paper",
    keys={
        "weight.early_use": TokenWeight,
        "weight.early_use.by": "lateness",
        "weight.early_use.keep": "bonus",
        "weight.early_use.strength": -2.0,
        "weight.early_use.bound": 0.7,
        "signal.first_match": first_match,
    },
    paper_defaults={"rollout.group_size": 8, "tasks.per_step": 96},
)
