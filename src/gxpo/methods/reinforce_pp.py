r"""REINFORCE++: no group; the outcome is whitened over all trainable tokens of the batch.

A_{i,t} = (r_i - mean) / sqrt(var + 1e-8), mean and unbiased variance over tokens: long trajectories weigh more.

Groups that are equal within but differ between one another do learn here, unlike under every group baseline.
Choices. The paper takes the KL of token t and after off the return at t; here a KL in the reward
(`objective.kl.place: reward`) is taken off the outcome once, which has the same expected gradient. Coefficient 0.
"""

from gxpo.credit import BatchWhiten
from gxpo.keys import Definition

reinforce_pp = Definition(
    name="reinforce_pp",
    title="REINFORCE++: Stabilizing Critic-Free Policy Optimization with Global Advantage Normalization",
    arxiv="2501.03262",
    authors="Hu, Jian and Liu, Jason Klein and Xu, Haotian and Shen, Wei",
    year=2025,
    idea="normalise over the batch instead of the group",
    formula="A = (r - mean_batch) / sqrt(var_batch + 1e-8) over trainable tokens",
    evidence="secondary",
    keys={"credit": BatchWhiten},
    choices="whitening over tokens (verl); TRL's recipe whitens over sequences",
)
