r"""REINFORCE++: batch normalisation of outcomes over all trainable tokens; no groups.

A_{i,t} = (r_i - mean) / sqrt(var + 1e-8), mean and unbiased variance over tokens: long trajectories weigh more.

Groups that are equal within but differ between one another do learn here, unlike under every group baseline.
Choices. Whitened over tokens, as in verl (TRL's recipe: over sequences). One degree of freedom, as in both, and the
base's mean over sequences; OpenRLHF, the authors' framework, has the population's variance and a mean over the tokens
of the optimiser step: `reinforce_pp@paper`. It holds the variance at 1e-8 or more, where that is added here, and clips
rewards at +-10 before. The paper takes the KL of token t and after off the return at t; here a KL in the reward
(`objective.kl.place: reward`) is taken off the outcome once, which has the same expected gradient. Coefficient 0.
"""

from gxpo.algorithms.credit.batch_whiten import batch_relative
from gxpo.parts.definition import Definition

reinforce_pp = Definition(
    name="reinforce_pp",
    doc=__doc__,
    title="REINFORCE++: Stabilizing Critic-Free Policy Optimization with Global Advantage Normalization",
    arxiv="2501.03262",
    authors="Hu, Jian and Liu, Jason Klein and Xu, Haotian and Shen, Wei",
    year=2025,
    evidence="reference-code",
    code="OpenRLHF/OpenRLHF@3c3be6234e0cb353e76bb8019947db9dfe99fca7 openrlhf/trainer/ppo_utils/experience_maker.py "
    "openrlhf/models/loss.py openrlhf/models/utils.py",
    keys={"credit": batch_relative},
    paper_defaults={"credit.ddof": 0, "objective.aggregate": "token_mean"},
)
