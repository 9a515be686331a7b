r"""GDPO: multi-reward GRPO: each reward is normalised within its group before the weighted sum.

z_k = (r_k - mean_g r_k) / (std_g r_k + 1e-4);   s = sum_k w_k z_k;   A = (s - mean_batch s) / (std_batch s + 1e-4)

Choices. Weights are by name (`credit.weights: {correct: 1.0, format: 0.5}`); without any, every component has weight
1. The two official ports differ: TRL's normalises over the batch's trajectories (ours), verl's over its tokens, which
weighs long answers more (`credit.over: tokens`). With one reward the batch normalisation is left out, as in TRL.
"""

from gxpo.algorithms.credit.decoupled import decoupled
from gxpo.parts.definition import Definition

gdpo_multi = Definition(
    name="gdpo_multi",
    doc=__doc__,
    title="GDPO: Group reward-Decoupled Normalization Policy Optimization for Multi-reward RL Optimization",
    arxiv="2601.05242",
    authors="Liu, Shih-Yang and Dong, Xin and Lu, Ximing and others",
    year=2026,
    evidence="reference-code",
    keys={"credit": decoupled},
    code="NVlabs/GDPO@b080e63d0126870ad08acc8ebc3f04b728175a9e trl-GDPO/trl-0.18.0-gdpo/trl/trainer/grpo_trainer.py "
    "verl-GDPO/verl/trainer/ppo/ray_trainer.py",
)
