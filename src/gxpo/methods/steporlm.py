r"""StepORLM: weighted DPO (W-DPO) on pairs of the group, by their difference in outcome and process quality.

a right attempt is better than a wrong one, w = 1; of two right or two wrong ones, the one whose process a judge finds
better, w = |q_better - q_worse|, q the outcome: verdict plus the judge's reward (`reward`)
s_i = sum_t (log policy - log reference);   l = -w log sigmoid(beta (s_better - s_worse)), beta 0.1
L = mean over groups of the mean over the group's pairs of l

Choices. From a detailed summary, which writes no reference model (here a frozen one, as in DPO); the authors' code is
public but was not to be had. q is the share of steps that the judge finds right, there. Every two attempts of different
quality are a pair, beta is DPO's, and the weights of a group's pairs are not normalised. Without a judge among the
rewards the quality is the verdict, and this is DPO on verdicts. Left out: the generative process reward model that
judges, and is refined by what the solver finds; a judge set in the run's configuration takes its place. Advantages are
not read.
"""

from gxpo.algorithms.objectives.preference_pairs import PreferencePairs
from gxpo.parts.definition import Definition

steporlm = Definition(
    name="steporlm",
    doc=__doc__,
    title="StepORLM: A Self-Evolving Framework With Generative Process Supervision For Operations Research Language "
    "Models",
    arxiv="2509.22558",
    authors="Zhou, Chenyu and Xu, Tianyi and Lin, Jianghao and Ge, Dongdong",
    year=2025,
    formula="L = mean_g mean_pairs -w log sigmoid(beta (s_w - s_l)), s = sum_t log(pi/ref)",
    evidence="secondary",
    keys={
        "objective": PreferencePairs,
        "objective.pairs": "ordered",
        "objective.by_gap": True,
        "objective.verdict_first": True,
    },
    refuses={"objective.kl.place": ("reward",)},
    cost="a frozen reference model and its forward pass over the rollouts",
)
