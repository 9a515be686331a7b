r"""EARL: train only the 20% highest-entropy tokens of each answer.

w_t = 1 where H_t is at least the 80 % quantile of its answer's entropies, else 0;   loss = GRPO's times w

Choices. A reconstruction: the quantile is per answer, as summaries have it (`weight.entropy_quantile.scope: batch` is
the common form, over all tokens of the step), linearly interpolated, of the policy at the start of the step. Masked
tokens stay in the denominators. The paper keeps a KL term whose coefficient we don't know: `objective.kl.coef`.
"""

from gxpo.algorithms.weighting.token_weight import TokenWeight
from gxpo.parts.definition import Definition

earl = Definition(
    name="earl",
    doc=__doc__,
    title="EARL: Entropy-Aware RL Alignment of LLMs for Reliable RTL Code Generation",
    arxiv="2511.12033",
    authors="Shi, Jiahe and Gao, Zhengqi and Ko, Ching-Yun and Boning, Duane",
    year=2025,
    evidence="reconstruction",
    keys={
        "weight.entropy_quantile": TokenWeight,
        "weight.entropy_quantile.by": "entropy",
        "weight.entropy_quantile.keep": "above_quantile",
        "weight.entropy_quantile.scope": "trajectory",
    },
    cost="a forward pass for entropies before the update",
)
