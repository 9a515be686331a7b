r"""ORPO: likelihood of the better answer, and the log of the odds ratio of the two, without a reference model.

p_i = exp(mean_t log policy);   odds_i = p_i / (1 - p_i);   l = -mean_t log policy(better) - lambda log sigmoid(log odds
ratio),   lambda 0.1
L = mean over groups of the mean over the group's pairs of l

Choices. lambda is `objective.pair_weight` (the paper's main runs: 0.1; the code's default: 1). The likelihood is a mean
over an answer's tokens, and then over pairs; in the authors' code and TRL it is one mean over all tokens of the better
texts of a batch, the prompt's among them (the code's option --disable_prompt_loss leaves these out). Pairs are made of
the step's own rollouts by verdict, or come with the data (rollout `logged`).
"""

from gxpo.algorithms.objectives.preference_pairs import PreferencePairs
from gxpo.parts.definition import Definition

orpo = Definition(
    name="orpo",
    doc=__doc__,
    title="ORPO: Monolithic Preference Optimization without Reference Model",
    arxiv="2403.07691",
    authors="Hong, Jiwoo and Lee, Noah and Thorne, James",
    year=2024,
    formula="L = mean_g mean_pairs NLL(y_w) - lambda log sigmoid(log odds_w / odds_l), odds of p = exp(mean_t log pi)",
    evidence="reference-code",
    code="xfactlab/orpo@0f0abfec65410537945c2c945924df88efb6bf17 src/orpo_trainer.py",
    keys={
        "objective": PreferencePairs,
        "objective.form": "odds",
        "objective.reference": "none",
        "objective.length_mean": True,
        "objective.beta": 1.0,
        "objective.pair_weight": 0.1,
        "objective.nll": 1.0,
    },
    refuses={"objective.kl.place": ("reward",)},
)
