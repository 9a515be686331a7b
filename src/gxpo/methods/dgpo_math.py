r"""DGPO: difficulty-balanced advantages (mean absolute deviation), and a softmax weight that favours hard prompts.

A_i = G (r_i - mean) / (sum_j |r_j - mean| + 1e-4):   sum_i |A_i| = G in every mixed group; GRPO gives most at p = 1/2
w_q = S softmax_q(-p_q / 2) over the S mixed groups of the step, p_q the share that is right (all wrong counts as 1)
L   = mean over the tokens of mixed groups

Choices. Tokens of groups without advantage are taken out of the mean by a factor on the others, as in the code; its
further factor for the balance of processes is 1 here, where a step is one batch. p comes from the verdicts, whatever
else is in the reward. The paper's rewriting of questions is data, not method: not here.
"""

from gxpo.algorithms.weighting.group_weight import GroupWeight
from gxpo.parts.definition import Definition

dgpo_math = Definition(
    name="dgpo_math",
    doc=__doc__,
    title="Harder Is Better: Boosting Mathematical Reasoning via Difficulty-Aware GRPO and Multi-Aspect Question "
    "Reformulation",
    arxiv="2601.20614",
    authors="Dai, Yanqi and Ji, Yuxiang and Zhang, Xiao and others",
    year=2026,
    formula="A = w_q (r - mean_g) / mean_g |r - mean_g|, w = S softmax(-p / 2) over the mixed groups",
    evidence="reference-code",
    keys={
        "credit.scale": "mean_absolute",
        "credit.eps": 1e-4,
        "weight.difficulty_softmax": GroupWeight,
        "weight.difficulty_softmax.curve": "difficulty_softmax",
        "objective.aggregate": "token_mean",
    },
    code="AMAP-ML/MathForge@83edda024759f052a4a715eb2c2e553fb9da25ca trl-0.20.0/trl/trainer/grpo_trainer.py",
)
