r"""TW-GRPO: token weights by position: larger where the answers of a group diverge.

w_t = 1 + 0.4 (D_t - min D) / (max D - min D);   loss = GRPO's times w_t
D_t = mean_i sum_v (e^d - d - 1), d = mean_j l_jtv - l_itv held in [-11, 11]
l_it = log-softmax of answer i at its t-th token, uniform past its end

Choices. D as in the code: a sum over the vocabulary that is not weighted by probability, so no Kullback-Leibler
divergence, and rare words dominate; w does not change the denominator. The code lets the gradient through w; here it
is detached. It weighs a KL term, too, which its scripts do not use; here w is on the policy's term alone. The largest
weight is 1.4, the trainer's default (its function's own is 1.5). Soft rewards for answer sets and question-answer
inversion are rewards and data of multiple-choice video tasks: not built.
"""

from gxpo.algorithms.signals.hidden_states import disagreement
from gxpo.algorithms.weighting.token_weight import TokenWeight
from gxpo.parts.definition import Definition

tw_grpo = Definition(
    name="tw_grpo",
    doc=__doc__,
    title="Reinforcing Video Reasoning with Focused Thinking",
    arxiv="2505.24718",
    authors="Dang, Jisheng and Wu, Jingze and Wang, Teng and Lin, Xuanhui and Zhu, Nannan and Chen, Hongbo and "
    "Zheng, Wei-Shi and Wang, Meng and Chua, Tat-Seng",
    year=2025,
    formula="w_t = 1 + (a - 1) minmax_t(D_t), D_t the answers' divergence from their mean at position t; a = 1.4",
    evidence="reference-code",
    keys={
        "weight.disagreement": TokenWeight,
        "weight.disagreement.by": "disagreement",
        "weight.disagreement.keep": "stretched",
        "weight.disagreement.scope": "group",
        "signal.disagreement": disagreement,
    },
    paper_defaults={"objective.aggregate": "token_mean", "objective.clip_high": 0.28, "credit.eps": 1e-4},
    cost="two forward passes over the rollouts before the update, one with the head on every vocabulary id",
    code="longmalongma/TW-GRPO@aa529ffca7ae408e4f3df7ba71cb0dc58544c6b7 src/open_r1/trainer/grpo_trainer.py",
)
