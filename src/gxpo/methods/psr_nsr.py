r"""W-REINFORCE: correct answers weigh 0.1, wrong ones -1, no baseline; PSR and NSR train one kind only.

A = lambda if right, -1 if wrong; lambda = 0.1;   L = mean over tokens
PSR: `--set weight.by_sign.positive=1 --set weight.by_sign.negative=0`;   NSR: `weight.by_sign.positive=0`

Pushing wrong answers down leaves the others' odds among themselves as they are, so that pass@k keeps up; every group
learns, the all-right and the all-wrong ones, too.
Choices. As in the authors' code: 1 times lambda for a score of 1, -1 for one of 0, clip 0.2, token mean. The outcome
becomes 1 or -1 by the verdict and lambda is a weight, which under the clip is the same as scaling A. PSR and NSR leave
the other rows out of their batch before the mean over tokens; here these weigh 0 and stay in its denominator, which
scales a step. Their released configuration has an entropy bonus of 1e-3 (`psr_nsr@paper`), which is not a default here.
"""

from gxpo.algorithms.weighting.token_weight import TokenWeight
from gxpo.environments.rewards.shape import Shape
from gxpo.parts.definition import Definition

psr_nsr = Definition(
    name="psr_nsr",
    doc=__doc__,
    title="The Surprising Effectiveness of Negative Reinforcement in LLM Reasoning",
    arxiv="2506.01347",
    authors="Zhu, Xinyu and Xia, Mengzhou and Wei, Zhepei and others",
    year=2025,
    formula="A = 0.1 if right, -1 if wrong",
    evidence="reference-code",
    code="TianHongZXY/RLVR-Decomposed@a5d4e7c1df60 verl/trainer/ppo/core_algos.py verl/trainer/ppo/ray_trainer.py "
    "verl/trainer/config/ppo_trainer.yaml",
    keys={
        "reward.shape.signed": Shape,
        "reward.shape.signed.function": "signed",
        "credit.center": "none",
        "credit.scale": "none",
        "weight.by_sign": TokenWeight,
        "weight.by_sign.by": "credit",
        "weight.by_sign.keep": "by_sign",
        "weight.by_sign.positive": 0.1,
        "objective.aggregate": "token_mean",
    },
    paper_defaults={"rollout.group_size": 8, "optim.lr": 1e-6, "objective.entropy.coef": 1e-3},
)
