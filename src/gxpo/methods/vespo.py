r"""VESPO: smooth variational kernel on the sequence-level importance weight, in place of the clip.

W = pi(y) / mu(y);   phi(W) = W^k e^(lambda (1 - W));   l_t = -stop(phi(W)) A log pi(o_t), token mean
(k, lambda) = (2, 3) for A > 0, (3, 2) for A < 0

phi(1) = 1. Rewarded answers count most at W = 2/3 and fade beyond, punished ones at W = 3/2.
Choices. As in the authors' code, with log W held in [-20, 20] (there a token's log-ratio is, too, and W >= 1e-8, which
moves phi by less than 1e-13). W is over the behaviour policy, so that the mismatch of sampler and learner is in it, as
where the code is given rollout weights; their synchronous scripts give none: `objective.ratio_over: proximal`. `tis`
would count it twice. k and lambda depend on the sign of each token's advantage (the code: of the trajectory's first).
"""

from gxpo.algorithms.objectives.ratio_trajectory import sequence_sum
from gxpo.algorithms.objectives.surrogate_weights import gamma
from gxpo.parts.definition import Definition

vespo = Definition(
    name="vespo",
    doc=__doc__,
    title="VESPO: Variational Sequence-Level Soft Policy Optimization for Stable Off-Policy LLM Training",
    arxiv="2602.10693",
    authors="Shen, Guobin and Zhao, Chenxiao and Cheng, Xiang and Huang, Lei and Yu, Xing",
    year=2026,
    formula="l = -stop(W^k e^(lambda (1 - W))) A log pi, W = pi(y) / mu(y)",
    evidence="reference-code",
    code="FloyedShen/VESPO@aa1f3045c346 recipe/vespo/code/core_algos.py recipe/vespo/run/sync/vespo_N_8.sh",
    keys={
        "objective.surrogate": gamma,
        "objective.ratio": sequence_sum,
        "objective.ratio_over": "behaviour",
        "objective.aggregate": "token_mean",
    },
)
