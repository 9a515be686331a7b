r"""S-GRPO: noise-aware group weights: groups of nearly equal verdicts weigh less, as verdicts may be wrong.

w = (1 - 2q) t (1 - t) / (sd(p) sd(t)),  p = k / n,  t = clip((p - q) / (1 - 2q), 0, 1),  sd(x) = sqrt(x (1 - x) + 1e-8)
A' = w A: with q = 0.1 a lone success of 8 weighs 0.42, an even group 0.8; with q = 0.15 the lone one weighs 0

Choices. q is 0.10 (0.10 and 0.15 in the scripts). A is the normalised advantage, as in the code, although its flag
names Dr. GRPO; only the aggregation is Dr. GRPO's (`s_grpo@paper`, with its eps). k counts verdicts; the code: rewards
above 0. Resampling until some weight is above 0 is off in the scripts and not built.
"""

from gxpo.algorithms.weighting.group_weight import GroupWeight
from gxpo.parts.definition import Definition

s_grpo = Definition(
    name="s_grpo",
    doc=__doc__,
    title="Mitigating Think-Answer Mismatch in LLM Reasoning Through Noise-Aware Advantage Reweighting",
    arxiv="2508.05928",
    authors="Shen, Si and Shen, Peijun and Zhao, Wenhua and Zhu, Danhao",
    year=2025,
    formula="A' = w A; w = (1 - 2q) sd(t)^2 / (sd(p) sd(t)), t = clip((p - q) / (1 - 2q), 0, 1)",
    evidence="reference-code",
    keys={"weight.noise_aware": GroupWeight, "weight.noise_aware.curve": "noise_aware"},
    paper_defaults={
        "credit.eps": 1e-8,
        "objective.aggregate": "sequence_sum",
        "rollout.group_size": 8,
        "optim.lr": 1e-6,
    },
    code="shenpeijun0212/S-GRPO@75c354075441add65f368b98e858b489471af63d train/train_S-GRPO.py "
    "train/Qwen2.5-math-1.5B_S-GRPO.sh",
)
