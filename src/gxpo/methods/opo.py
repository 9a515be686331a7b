r"""OPO: optimal (length-weighted) reward baseline for exactly on-policy training; no std.

A_i = r_i - sum_j L_j r_j / sum_j L_j;   mean over tokens

sum_i L_i A_i = 0: the advantages of a group's tokens sum to 0. With equal lengths this is Dr. GRPO's advantage.
Exact on policy only: one update a step.
Choices. The code patches advantages alone; the loss is that of verl 0.2, a mean over tokens, and so it is here: in a
mean over sequences an answer's score would no longer grow with its length, as the baseline supposes. A group of one has
advantage 0, as in the authors' code; verl's own port gives it a baseline of 0.
"""

from gxpo.algorithms.credit import length_weighted
from gxpo.parts.definition import Definition

opo = Definition(
    name="opo",
    doc=__doc__,
    title="On-Policy RL with Optimal Reward Baseline",
    arxiv="2505.23585",
    authors="Hao, Yaru and Dong, Li and Wu, Xun and others",
    year=2025,
    evidence="reference-code",
    code="microsoft/LMOps@4f2a9deb5f08e459fd44c2e4792344d78ca89fc3 opo/verl/trainer/ppo/core_algos.py opo/README.md",
    keys={"credit": length_weighted, "objective.aggregate": "token_mean"},
)
