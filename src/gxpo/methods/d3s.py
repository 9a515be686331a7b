r"""D3S: dual down-sampling: rollouts of maximal advantage variance, tokens of largest |A| H (entropy); both relax.

N of M rollouts: the j smallest and N - j largest A with the greatest variance;   tokens: the top K % by |A_t| H_t
share at progress p: (1 - p) first + p last

Choices. From a summary. Rollouts of the whole step compete (the paper has a variant inside groups); A is normalised in
its group before, and not again, so the kept ones have no mean of 0. Shares 1/2 to 1 for both, and over the whole run,
are ours. Kept rollouts weigh M / N; dropped tokens stay in the denominators.
"""

from gxpo.algorithms.weighting.token_weight import TokenWeight
from gxpo.parts.definition import Definition

d3s = Definition(
    name="d3s",
    doc=__doc__,
    title="Learning More with Less: A Dynamic Dual-Level Down-Sampling Framework for Efficient Policy Optimization",
    arxiv="2509.22115",
    authors="Wang, Chao and Yang, Tao and Tian, Hongtao and Shi, Yunsheng and Ma, Qiyao and Liu, Xiaotao and "
    "Yao, Ting and Ding, Wenbo",
    year=2025,
    formula="rows: max Var(A) subset; tokens: top share of |A| H; shares grow over training",
    evidence="secondary",
    keys={
        "weight.down_sampling": TokenWeight,
        "weight.down_sampling.by": "credit",
        "weight.down_sampling.keep": "down_sampling",
    },
    cost="a forward pass for entropies before the update; dropped rows need none with gradient",
)
