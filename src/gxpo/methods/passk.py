r"""Pass@k training: analytic advantages of the pass@k reward over all sets of k rollouts of the group.

R = 1 - C(n-c, k) / C(n, k),  s = sqrt(R (1 - R))
A = (1 - R) / s if correct,  (1 - R - C(n-c-1, k-1) / C(n-1, k-1)) / s if wrong;   sum_i A_i = 0; k = 1 is GRPO, ddof 0

Choices. k is 2; the code has no default. Large k wants large groups: easy ones (n - c < k) and those of at most k
attempts have no credit. Rewards are verdicts. `pkpo` is another estimator with the same aim; the paper's earlier
variants, which draw sets, are not built.
"""

from gxpo.algorithms.credit.sets import pass_at_k
from gxpo.parts.definition import Definition

passk = Definition(
    name="passk",
    doc=__doc__,
    title="Pass@k Training for Adaptively Balancing Exploration and Exploitation of Large Reasoning Models",
    arxiv="2508.10751",
    authors="Chen, Zhipeng and Qin, Xiaobo and Wu, Youbin and others",
    year=2025,
    formula="A = (1 - R) / s or (1 - R - C(n-c-1, k-1) / C(n-1, k-1)) / s, R = 1 - C(n-c, k) / C(n, k)",
    evidence="reference-code",
    keys={"credit": pass_at_k},
    code="RUCAIBox/Passk_Training@c3ba575ecb31f47fd9f5c43b18c081d4a295f783 code/passk_adv.py",
)
