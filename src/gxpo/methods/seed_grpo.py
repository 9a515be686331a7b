r"""SEED-GRPO: advantages scaled down by the semantic entropy of the group's answers.

SE  = -(1/K) sum_k log p_k over the group's K answers;   A_i = (r_i - mean_g r) w,  w = 1 - alpha SE / log G
no division by the group's std;   alpha = 1

Choices. alpha 1: a group in which no two answers agree is not trained. The paper's runs have 0.02, which leaves such a
group 98 % of its weight, and Dr. GRPO's loss, a sum over tokens by a constant: `seed_grpo@paper`. p_k is the share of
attempts with answer k; the paper's eq. 5 has the sum of their likelihoods, which is
`weight.answer_entropy.mass=likelihood` (by mean log-probability of a token), but its largest SE, log G, is that of
shares. The estimator is eq. 5's, under which 3 answers against 1 are less certain than 2 against 2; `estimator=shannon`
is eq. 4's entropy. The linear form of f is in a supplement that was not read. Answers are compared as strings, as in
the paper; an attempt without one is an answer of its own. w weighs the loss, which for clips is the same as scaling A.
The authors' repository (Dreamer312/SEED-GRPO) has no code yet.
"""

from gxpo.algorithms.signals.texts import answer_clusters
from gxpo.algorithms.weighting.group_weight import GroupWeight
from gxpo.parts.definition import Definition

seed_grpo = Definition(
    name="seed_grpo",
    doc=__doc__,
    title="SEED-GRPO: Semantic Entropy Enhanced GRPO for Uncertainty-Aware Policy Optimization",
    arxiv="2505.12346",
    authors="Chen, Minghan and Chen, Guikun and Wang, Wenguan and Yang, Yi",
    year=2025,
    formula="A = (r - mean_g)(1 - alpha SE / log G), SE = -(1/K) sum_k log p_k over distinct answers",
    evidence="paper",
    keys={
        "credit.scale": "none",
        "weight.answer_entropy": GroupWeight,
        "weight.answer_entropy.statistic": "answer_entropy",
        "weight.answer_entropy.curve": "damped",
        "signal.answer_clusters": answer_clusters,
    },
    paper_defaults={
        "weight.answer_entropy.alpha": 0.02,
        "objective.aggregate": "sequence_sum",
        "objective.horizon": 3000.0,
        "rollout.group_size": 8,
    },
)
