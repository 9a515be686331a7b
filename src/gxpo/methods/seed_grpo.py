r"""SEED-GRPO: the less a group agrees on the answer, the smaller its update.

SE  = -(1/K) sum_k log p_k over the group's K answers;   A_i = (r_i - mean_g r) w,  w = 1 - alpha SE / log G

Choices. p_k is the share of attempts with answer k; the paper's sum of their likelihoods is
`weight.answer_entropy.mass=likelihood` (by mean log-probability of a token). The estimator is the paper's, under which
3 answers against 1 are less certain than 2 against 2; `estimator=shannon` is the entropy. Answers are compared as
strings, an attempt without one stands alone. alpha is not confirmed: at our 1, a group in which no two answers agree is
not trained; a port has 0.0417. w weighs the loss, which for clips is the same as scaling A.
"""

from gxpo.keys import Definition
from gxpo.signals.answer_clusters import AnswerClusters
from gxpo.weighting.answer_entropy import AnswerEntropy

seed_grpo = Definition(
    name="seed_grpo",
    title="SEED-GRPO: Semantic Entropy Enhanced GRPO for Uncertainty-Aware Policy Optimization",
    arxiv="2505.12346",
    authors="Chen, Minghan and Chen, Guikun and Wang, Wenguan and Yang, Yi",
    year=2025,
    idea="updates shrink with the semantic entropy of the group's answers",
    formula="A = (r - mean_g)(1 - alpha SE / log G), SE = -(1/K) sum_k log p_k over distinct answers",
    evidence="secondary",
    keys={
        "credit.scale": "none",
        "weight.answer_entropy": AnswerEntropy,
        "signal.answer_clusters": AnswerClusters,
    },
    paper_defaults={"rollout.group_size": 8},
    choices="answers by exact string; shares of attempts, not likelihoods; alpha 1, linear",
)
