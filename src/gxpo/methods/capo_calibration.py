r"""CAPO (calibration): logistic AUC surrogate over correct-wrong pairs, masked by reference perplexity.

A_i = sum over wrong j of s(l_j - l_i) if right, -sum over right j of s(l_i - l_j) if wrong
s(t) = sigmoid(t/tau) / tau;   l = mean_t log old;   loss = GRPO's with A_i, times m_i
m_i = [PPL_ref(o_i) <= 2.5] if right, [PPL_ref(o_i) >= 1.05] if wrong

Choices. tau 0.6 (the paper: 0.6 for 1.5B, 0.5 for 7B parameters). The sum has no normaliser: our source states none,
and it would only scale the step. Masked rollouts still count in the sums of the others. Bounds of perplexity are for a
reference that is a capable model of the task; of one trained from nothing, every correct answer may be left out.
"""

from gxpo.algorithms.credit.pairwise import pairwise_auc
from gxpo.algorithms.weighting.token_weight import TokenWeight
from gxpo.parts.definition import Definition

capo_calibration = Definition(
    name="capo_calibration",
    doc=__doc__,
    title="Calibration-Aware Policy Optimization for Reasoning LLMs",
    arxiv="2604.12632",
    authors="Wang, Ziqi and Lou, Xingzhou and Wu, Meiqi and Wen, Zhengqi and Zhang, Junge",
    year=2026,
    formula="A_i = +-sum over the other label of sigmoid(+-(l_j - l_i) / tau) / tau, masked by reference perplexity",
    evidence="secondary",
    keys={
        "credit": pairwise_auc,
        "weight.reference_perplexity": TokenWeight,
        "weight.reference_perplexity.by": "perplexity",
        "weight.reference_perplexity.keep": "plausible",
        "weight.reference_perplexity.unit": "trajectory",
    },
    paper_defaults={"rollout.group_size": 8, "tasks.per_step": 128, "optim.lr": 1e-6},
    cost="a reference model and a forward pass of it; pairs within groups",
)
