r"""Reg-GRPO: regression of group-normalised log-ratios on group-normalised rewards; no clip.

D_i = sum_t (log policy - log old);   z(D)_i = 10 (D_i - mean D) / max(1, std of 10 D);   A_i = (r_i - mean r) / std r
L = mean_g (1/2) sum_i (z(D)_i - A_i)^2 / (G - 1)

Choices. The paper divides D by its std, which is 0 on the first update after sampling (0 / 0, in code the square root's
infinite slope). Here log-ratios are divided by no less than 1 / beta = 0.1 nats: below that the loss is GVPO's with A
for r, whose gradient at D = 0 is -beta A_i / (G - 1); beyond it the loss is 1 - corr(r, D), as in the paper. That part
knows no scale of D, so it is no trust region; `objective.beta` moves the border. Stds have one degree of freedom. The
paper's loss is the mean over members, 2 (G - 1) / G times this, and it adds KL to the reference (`objective.kl.coef`).
Its augmentation by difficulty changes videos and prompts and is not here. Advantages are not read.
"""

from gxpo.algorithms.objectives.sequence_losses import GroupVariance
from gxpo.parts.definition import Definition

reg_grpo = Definition(
    name="reg_grpo",
    doc=__doc__,
    title="DeepVideo-R1: Video Reinforcement Fine-Tuning via Difficulty-aware Regressive GRPO",
    arxiv="2506.07464",
    authors="Park, Jinyoung and Na, Jeehye and Kim, Jinyoung and Kim, Hyunwoo J.",
    year=2025,
    formula="L = mean_g (1/2) sum_i [(D_i - mean D) / max(0.1, std D) - A_i]^2 / (G - 1), D = sum_t log(pi/old)",
    evidence="paper",
    keys={"objective": GroupVariance, "objective.standardise": True, "objective.beta": 10.0},
    refuses={"objective.kl.place": ("reward",)},
)
