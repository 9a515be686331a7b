r"""EARL: only the tokens at which the policy is least sure are trained.

w_t = 1 where H_t is at least the 80 % quantile of its answer's entropies, else 0;   loss = GRPO's times w

Choices. A reconstruction: the quantile is per answer, as summaries have it (`weight.entropy_quantile.scope: batch` is
the common form, over all tokens of the step), linearly interpolated, of the policy at the start of the step. Masked
tokens stay in the denominators. The paper keeps a KL term whose coefficient we don't know: `objective.kl.coef`.
"""

from gxpo.keys import Definition
from gxpo.weighting.token_weight import TokenWeight

earl = Definition(
    name="earl",
    title="EARL: Entropy-Aware RL Alignment of LLMs for Reliable RTL Code Generation",
    arxiv="2511.12033",
    authors="Shi, Jiahe and Gao, Zhengqi and Ko, Ching-Yun and Boning, Duane",
    year=2025,
    idea="most tokens of structured code are certain: the gradient goes to the few that are not",
    formula="w = [H_t >= quantile_0.8 of the answer's H]; L = L_GRPO with w",
    evidence="reconstruction",
    keys={
        "weight.entropy_quantile": TokenWeight,
        "weight.entropy_quantile.by": "entropy",
        "weight.entropy_quantile.keep": "above_quantile",
        "weight.entropy_quantile.scope": "trajectory",
    },
    choices="quantile per answer; top 20 %; denominators of all tokens",
    cost="a forward pass for entropies before the update",
)
