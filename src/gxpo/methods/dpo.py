r"""DPO: direct preference optimization on all pairs of a correct and a wrong rollout of the same group.

s_i = sum_t (log policy - log reference);   h = s_better - s_worse;   l = -log sigmoid(beta h),   beta 0.1
L = mean over groups of the mean over the group's pairs of l

Choices. The loss of a pair is the authors' code's, label smoothing and IPO included. They train on given pairs; here
pairs are made of the step's own rollouts by verdict, again in each step (`objective.pairs: outcome`: the highest
against the lowest outcomes). The unit is the group: one with many pairs weighs as much as one with few, one without any
counts as 0. `objective.label_smoothing` is cDPO, `objective.form: ipo` IPO. Not importance weighted: it needs no
sampler's log-probs. Advantages are not read.
"""

from gxpo.algorithms.objectives.preference_pairs import PreferencePairs
from gxpo.parts.definition import Definition

dpo = Definition(
    name="dpo",
    doc=__doc__,
    title="Direct Preference Optimization: Your Language Model is Secretly a Reward Model",
    arxiv="2305.18290",
    authors="Rafailov, Rafael and Sharma, Archit and Mitchell, Eric and others",
    year=2023,
    formula="L = mean_g mean_pairs -log sigmoid(beta (s_w - s_l)), s = sum_t log(pi/ref)",
    evidence="reference-code",
    code="eric-mitchell/direct-preference-optimization@f8b8c0f49dc9 trainers.py config/loss/dpo.yaml",
    keys={"objective": PreferencePairs},
    refuses={"objective.kl.place": ("reward",)},
    cost="a frozen reference model and its forward pass over the rollouts",
)
