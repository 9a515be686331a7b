r"""W-REINFORCE: right answers count 0.1, wrong ones -1, without a baseline; PSR and NSR train one kind only.

A = lambda if right, -1 if wrong; lambda = 0.1;   L = mean over tokens
PSR: `--set weight.by_sign.positive=1 --set weight.by_sign.negative=0`;   NSR: `weight.by_sign.positive=0`

Pushing wrong answers down leaves the others' odds among themselves as they are, so that pass@k keeps up; every group
learns, the all-right and the all-wrong ones, too.
Choices. The outcome becomes 1 or -1 by the verdict and lambda is a weight, which under the clip is the same as scaling
A. Clip and ratio are the base's.
"""

from gxpo.keys import Definition
from gxpo.rewards.signed import Signed
from gxpo.weighting.by_sign import BySign

psr_nsr = Definition(
    name="psr_nsr",
    title="The Surprising Effectiveness of Negative Reinforcement in LLM Reasoning",
    arxiv="2506.01347",
    authors="Zhu, Xinyu and Xia, Mengzhou and Wei, Zhepei and others",
    year=2025,
    idea="learn mostly from mistakes: positive samples at a tenth of the weight, no baseline",
    formula="A = 0.1 if right, -1 if wrong",
    evidence="secondary",
    keys={
        "reward.shape.signed": Signed,
        "credit.center": "none",
        "credit.scale": "none",
        "weight.by_sign": BySign,
        "weight.by_sign.positive": 0.1,
        "objective.aggregate": "token_mean",
    },
    choices="lambda as a weight on positive credit, so that it can be put on any other credit, too",
)
