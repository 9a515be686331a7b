r"""DPO on pairs from groups: every success is preferred to every failure of its group.

s_i = sum_t (log policy - log reference);   h = s_better - s_worse;   l = -log sigmoid(beta h),   beta 0.1
L = mean over groups of the mean over the group's pairs of l

Choices. The loss of a pair is the authors' code's, label smoothing and IPO included. They train on given pairs; here
pairs are made of the step's own rollouts by verdict, again in each step (`objective.pairs: outcome`: the highest
against the lowest outcomes). The unit is the group: one with many pairs weighs as much as one with few, one without any
counts as 0. `objective.label_smoothing` is cDPO, `objective.form: ipo` IPO. Not importance weighted: it needs no
sampler's log-probs. Credit is not read.
"""

from gxpo.keys import Definition
from gxpo.objectives.preference_pairs import PreferencePairs

dpo = Definition(
    name="dpo",
    title="Direct Preference Optimization: Your Language Model is Secretly a Reward Model",
    arxiv="2305.18290",
    authors="Rafailov, Rafael and Sharma, Archit and Mitchell, Eric and others",
    year=2023,
    idea="the log-ratio to a frozen reference is a reward: make it larger for the better of two answers",
    formula="L = mean_g mean_pairs -log sigmoid(beta (s_w - s_l)), s = sum_t log(pi/ref)",
    evidence="reference-code",
    code="eric-mitchell/direct-preference-optimization@f8b8c0f49dc9 trainers.py config/loss/dpo.yaml",
    keys={"objective": PreferencePairs},
    refuses={"objective.kl.place": ("reward",)},
    choices="pairs: every success with every failure of a group; mean over pairs, then over all groups; beta 0.1",
    cost="a frozen reference model and its forward pass over the rollouts",
)
