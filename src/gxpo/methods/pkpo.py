r"""PKPO: an unbiased gradient of pass@k, each attempt against the mean of the others.

a_i = C(n-c, k-1) / C(n-1, k-1) if correct, 0 if wrong: the chance of being the only success among k
A_i = a_i - mean_{j != i} a_j

Choices. k is 2. For verdicts, after MaxRL's code; the paper's transformation of graded rewards is not built. Where
`passk` normalises by the spread of the sets' results, this does not scale: its size falls with the success rate.
"""

from gxpo.credit.pass_at_k import PassAtK
from gxpo.keys import Definition

pkpo = Definition(
    name="pkpo",
    title="Pass@K Policy Optimization: Solving Harder Reinforcement Learning Problems",
    arxiv="2505.15201",
    authors="Walder, Christian and Karkhanis, Deep",
    year=2025,
    idea="pass@k's own gradient: a success counts by the chance that the k - 1 others would have failed",
    formula="A = a - mean of the others' a; a = [correct] C(n-c, k-1) / C(n-1, k-1)",
    evidence="secondary",
    keys={"credit": PassAtK, "credit.kind": "leave_one_out"},
    choices="k 2; binary rewards, as in MaxRL's code",
)
