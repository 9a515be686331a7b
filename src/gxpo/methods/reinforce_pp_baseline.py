r"""REINFORCE++-baseline: the group's mean is taken off, then the batch is whitened over its trainable tokens.

a_i = r_i - mean_g r;   A_{i,t} = (a_i - mean) / sqrt(var + 1e-8) over tokens of the batch
"""

from gxpo.credit import BatchWhiten
from gxpo.keys import Definition

reinforce_pp_baseline = Definition(
    name="reinforce_pp_baseline",
    title="REINFORCE++: Stabilizing Critic-Free Policy Optimization with Global Advantage Normalization",
    arxiv="2501.03262",
    authors="Hu, Jian and Liu, Jason Klein and Xu, Haotian and Shen, Wei",
    year=2025,
    idea="group mean as baseline, batch std as scale",
    formula="a = r - mean_g; A = (a - mean_batch) / sqrt(var_batch + 1e-8) over trainable tokens",
    evidence="secondary",
    keys={"credit": BatchWhiten, "credit.center": "mean"},
    choices="a group of one has a = 0 (verl keeps the raw reward)",
)
