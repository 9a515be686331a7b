r"""MNPO: margins against a mixture of the reference and the policy's own past, regressed to a target.

s_i = mean_t (log policy - m),   m = rho log reference + (1 - rho) mean_j log policy_j,   rho 1/3, the last 2 policies
L = mean over groups of the mean over their pairs of (s_better - s_worse - 1 / (2 eta))^2,   eta 0.0075

Choices. As the authors' code computes it, which never reads the weights of the policies that it is configured with, and
leaves their share of m out while there are none (`signal.opponents.empty: reference` gives it to the reference). The
target of 66.7 is out of reach of a mean of log-probs, so that the gradient is nearly a linear loss's. Their equations
have sums over tokens: `objective.length_mean: false`, `objective.beta: 0.1` to go with them. There the past policies
are those of earlier rounds over the data, and of a prompt's answers a reward model's best and worst are a pair; here a
policy is kept every 10 steps (`signal.opponents.every`), and the pairs are the step's highest and lowest outcomes.
"""

from gxpo.algorithms.objectives.preference_pairs import PreferencePairs
from gxpo.algorithms.signals.opponents import Opponents
from gxpo.parts.definition import Definition

mnpo = Definition(
    name="mnpo",
    doc=__doc__,
    title="Multiplayer Nash Preference Optimization",
    arxiv="2509.23102",
    authors="Wu, Fang and Huang, Xu and Xuan, Weihao and others",
    year=2025,
    formula="L = mean_pairs (s_w - s_l - 1 / (2 eta))^2, s = mean_t (log pi - rho log ref - (1 - rho) mean_j log pi_j)",
    evidence="reference-code",
    code="smiles724/MNPO@b8317e91a80df71f8a5fddca0959bc8a14f98e7b mnpo_scripts/mnpo_trainer.py "
    "mnpo_scripts/mnpo_config.py training_configs/gemma-2-9b-it-mnpo-iter2.yaml",
    keys={
        "objective": PreferencePairs,
        "objective.form": "ipo",
        "objective.beta": 0.0075,
        "objective.length_mean": True,
        "objective.pairs": "outcome",
        "objective.reference": "opponents",
        "signal.opponents": Opponents,
        "signal.opponents.empty": "nothing",
    },
    refuses={"objective.kl.place": ("reward",)},
    cost="a forward pass for each policy kept, and their parameters, beside the reference's",
)
