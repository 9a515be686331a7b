r"""XRPO: advantage bonus for correct answers of low likelihood within their group (novelty sharpening).

s_i = mean_t log policy;  eta_i = exp(s_i - mean_j s_j);  A'_i = A_i + min(max(2.5 (1 - eta_i), 0), 0.5 A_i) if correct

Choices. Only this novelty-aware sharpening is built. The allocation of rollouts by expected shrinkage of a confidence
interval is known only in outline, and the seeding of unsolved prompts with solved exemplars needs a bank of them:
neither is here. A wrong answer keeps its advantage (for A < 0 the minimum would deepen it), and so does a correct one
of advantage 0 or less. As a weight, A' / A, so that it composes with every advantage.
"""

from gxpo.algorithms.weighting.token_weight import TokenWeight
from gxpo.parts.definition import Definition

xrpo = Definition(
    name="xrpo",
    doc=__doc__,
    title="XRPO: Pushing the limits of GRPO with Targeted Exploration and Exploitation",
    arxiv="2510.06672",
    authors="Bamba, Udbhav and Fang, Minghao and Yu, Yifan and Zheng, Haizhong and Lai, Fan",
    year=2025,
    evidence="secondary",
    keys={
        "weight.novelty": TokenWeight,
        "weight.novelty.by": "rarity",
        "weight.novelty.keep": "bonus",
        "weight.novelty.sign": "positive",
        "weight.novelty.strength": 2.5,
        "weight.novelty.bound": 0.5,
    },
    cost="a forward pass over the rollouts before the update",
)
