r"""LENS: confidence-weighted penalty on wrong answers, so that all-wrong groups have a gradient too.

p_i = exp(mean_t log old);   r'_i = r_i - (1/G) (1 - r_i) p_i / (D - p_i);   J = J[mixed] + 0.25 J[all-wrong groups]
D = max(1 / mean_i(r_i / p_i), 2 max_j p_j), without a success 2 max_j p_j;  all-wrong groups are centred, not scaled

Choices. Confidence is length-normalised in the whole of D (one equation of the paper has raw probabilities there, which
underflow). r is the verdict; other rewards stay in the outcome, in addition to the penalty. Rollouts that drop groups
of equal verdicts would take away what it learns from: refused.
"""

from gxpo.algorithms.credit.success_rate import negative_groups
from gxpo.environments.rewards.confidence import ConfidencePenalty
from gxpo.parts.definition import Definition

lens = Definition(
    name="lens",
    doc=__doc__,
    title="Don't Waste Mistakes: Leveraging Negative RL-Groups via Confidence Reweighting",
    arxiv="2510.08696",
    authors="Feng, Yunzhen and Jain, Parag and Hartshorn, Anthony and Duan, Yaqi and Kempe, Julia",
    year=2025,
    formula="r' = r - (1 - r) p / (G (D - p)), p = exp(mean log old); A = z(r'), all wrong: 0.25 (r' - mean)",
    evidence="paper",
    keys={"reward.add.confidence_penalty": ConfidencePenalty, "credit": negative_groups},
    paper_defaults={"rollout.group_size": 16, "tasks.per_step": 32},
)
