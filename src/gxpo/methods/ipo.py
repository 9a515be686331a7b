r"""IPO: pairs whose margin is regressed to a finite target, so that certain labels push no further.

s_i = sum_t (log policy - log reference);   h = s_better - s_worse;   l = (h - 1 / (2 beta))^2,   beta 0.1
L = mean over groups of the mean over the group's pairs of l

Choices. DPO with another loss of the pair (`dpo` with `objective.form: ipo`). beta is the paper's tau. Log-probs are
summed, as in the paper; TRL takes means over tokens, which it says the authors intended: `objective.length_mean: true`.
Pairs are made of the step's own rollouts by verdict, or come with the data (rollout `logged`). Another IPO, of the same
acronym, moves intermediate steps of diffusion.
"""

from gxpo.algorithms.objectives.preference_pairs import PreferencePairs
from gxpo.parts.definition import Definition

ipo = Definition(
    name="ipo",
    doc=__doc__,
    title="A General Theoretical Paradigm to Understand Learning from Human Preferences",
    arxiv="2310.12036",
    authors="Azar, Mohammad Gheshlaghi and Rowland, Mark and Piot, Bilal and others",
    year=2023,
    formula="L = mean_g mean_pairs (s_w - s_l - 1 / (2 beta))^2, s = sum_t log(pi/ref)",
    evidence="paper",
    keys={"objective": PreferencePairs, "objective.form": "ipo"},
    refuses={"objective.kl.place": ("reward",)},
    cost="a frozen reference model and its forward pass over the rollouts",
)
