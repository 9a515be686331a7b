r"""SimPO: pairs by mean log-prob, without a reference model, with a target margin.

s_i = mean_t log policy;   l = -log sigmoid(beta (s_better - s_worse) - gamma),   beta 2, gamma 0.5
L = mean over groups of the mean over the group's pairs of l

Choices. gamma is `objective.margin`, outside beta as in the paper; the code has gamma / beta (0.25 there). Its scripts
range from beta 2 to 10 and gamma / beta from 0.1 to 0.8. Length counts: of two answers that share their beginning, that
beginning does not cancel. `objective.form: hinge` and `objective.nll` (the code's sft_weight) are there. Pairs are made
of the step's own rollouts by verdict, or come with the data (rollout `logged`).
"""

from gxpo.algorithms.objectives.preference_pairs import PreferencePairs
from gxpo.parts.definition import Definition

simpo = Definition(
    name="simpo",
    doc=__doc__,
    title="SimPO: Simple Preference Optimization with a Reference-Free Reward",
    arxiv="2405.14734",
    authors="Meng, Yu and Xia, Mengzhou and Chen, Danqi",
    year=2024,
    formula="L = mean_g mean_pairs -log sigmoid(beta (s_w - s_l) - gamma), s = mean_t log pi",
    evidence="reference-code",
    code="princeton-nlp/SimPO@15c4ff89188e81a921e58377e2c988c173e60764 scripts/simpo_trainer.py",
    keys={
        "objective": PreferencePairs,
        "objective.reference": "none",
        "objective.length_mean": True,
        "objective.beta": 2.0,
        "objective.margin": 0.5,
    },
    refuses={"objective.kl.place": ("reward",)},
)
