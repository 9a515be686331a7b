r"""StepORLM: weighted DPO (W-DPO) on pairs of the group, by their difference in outcome and process quality.

a right attempt is better than a wrong one, w = 1; of two right or two wrong ones, the one whose process a judge finds
better, w = |q_better - q_worse|, q the outcome: verdict plus the judge's reward (`reward`)
s_i = sum_t log policy;   l = -w log sigmoid(beta (s_better - s_worse)), beta 0.1
L = mean over groups of the mean over the group's pairs of l

Choices. Equation 1, Algorithm 1 and section 4.1 of the paper (ICLR 2026); of its code, which it calls public, nothing
was to be had. Equation 1 has no reference model (default changed on 2026-11-28: before, a frozen policy, as in DPO:
`objective.reference: start`), so that nothing holds log-probs. q is the share of steps that the judge finds right,
there. The paper draws 4 trajectories a question (`steporlm@paper`), of those that its warm-up does not solve 5 times of
5; it does not say which pairs of them it takes: here all of different quality, and the weights of a group's pairs are
not normalised. Without a judge among the rewards the quality is the verdict, and pairs are those of verdicts. Left out:
the warm-up, and the generative process reward model that judges and is refined by what the solver finds; a judge set in
the run's configuration takes its place. Advantages are not read.
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
    formula="L = mean_g mean_pairs -w log sigmoid(beta (s_w - s_l)), s = sum_t log pi",
    evidence="paper",
    keys={
        "objective": PreferencePairs,
        "objective.pairs": "ordered",
        "objective.by_gap": True,
        "objective.verdict_first": True,
        "objective.reference": "none",
    },
    paper_defaults={"rollout.group_size": 4},
    refuses={"objective.kl.place": ("reward",)},
)
