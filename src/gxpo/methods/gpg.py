r"""GPG: plain policy gradient with a group-mean baseline, rescaled for zero-variance groups; no ratio, clip or KL.

A_i = alpha (r_i - mean_g r);   alpha = B / (B - M), M of the step's B rollouts in groups of equal rewards
L   = -mean_i mean_t A_i log pi: no ratio, no clip, no reference

Choices. F_norm = 1, the paper's main setting (`credit.scale: std` for the other). alpha is over the step; "equal"
groups are those in which every advantage is 0. The code divides by the share + 1e-5. The paper samples again while the
share is below 0.6 (scripts: 0.4): not built; with `rollout=dynamic_sampling` alpha is 1. verl's `gpg` is something
else: its alpha is B over the number of non-zero rewards.
"""

from gxpo.algorithms.objectives.surrogate import log_likelihood
from gxpo.algorithms.weighting.group_weight import GroupWeight
from gxpo.parts.definition import Definition

gpg = Definition(
    name="gpg",
    doc=__doc__,
    title="GPG: A Simple and Strong Reinforcement Learning Baseline for Model Reasoning",
    arxiv="2504.02546",
    authors="Chu, Xiangxiang and Huang, Hailang and Zhang, Xiao and Wei, Fei and Wang, Yong",
    year=2025,
    formula="A = B / (B - M) (r - mean_g r); L = -mean_i mean_t A log pi",
    evidence="reference-code",
    keys={
        "credit.scale": "none",
        "objective.surrogate": log_likelihood,
        "weight.valid_share": GroupWeight,
        "weight.valid_share.statistic": "credited",
        "weight.valid_share.curve": "over_share",
    },
    code="AMAP-ML/GPG@e096da8ce527a1636272469cee383ba71ec4a511 R1-V/src/r1-v/src/open_r1/trainer/grpo_trainer.py",
)
