r"""PKPO: unbiased policy gradient of pass@k (leave-one-out maximum).

A_i = k mean_J (max(r_i, max_J r) - max_J r),   J: all sets of k - 1 of the group's other attempts
rewards 0 and 1: A_i = k C(n-c, k-1) / C(n-1, k-1) for a success, 0 for a failure

The mean of A_i d log pi(y_i) is the gradient of the expected best of k rewards, without bias. No A is below 0.
Choices. The estimator that the paper recommends (arXiv 2505.15201), s^(loo-1) of eq. 33, times n since attempts are
averaged here; no code is public but the paper's listing. It takes graded rewards as they are, shaping included. k
is 2; k = 1, where eq. 33 has no set to compare with, is RLOO. `credit.kind: leave_one_out` is the `pkpo` of MaxRL's
code: verdicts, without the factor k, and the mean of the others' advantages taken off once more, which is biased: 1.05,
1.43 and 4.86 times the gradient at p = .1, .5 and .9 (n 8, k 4). Where `passk` normalises by the spread of the sets'
results, this does not scale: its size falls with the success rate.
"""

from gxpo.algorithms.credit.sets import pass_at_k
from gxpo.parts.definition import Definition

pkpo = Definition(
    name="pkpo",
    doc=__doc__,
    title="Pass@K Policy Optimization: Solving Harder Reinforcement Learning Problems",
    arxiv="2505.15201",
    authors="Walder, Christian and Karkhanis, Deep",
    year=2025,
    formula="A = k mean_J (max(r, max_J r) - max_J r), J of k - 1 others; [correct] k C(n-c, k-1) / C(n-1, k-1)",
    evidence="paper",
    keys={"credit": pass_at_k, "credit.kind": "sloo_minus_one"},
)
