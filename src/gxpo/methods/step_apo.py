r"""Step-APO (CPL, critical plan step learning): pairs of steps that begin at one state, offset by their values.

s_j = sum_t (log policy - log reference) over the step;   V_j the value of the state that it leads to
l = -log sigmoid(beta (s_better - s_worse) - (V_better - V_worse)),   V_better > V_worse,   beta 0.3
L = mean over the states of the mean over their pairs of l

Choices. From a summary that quotes the equations; beta is ours. The paper's values come from a search
over plans; here a step's value is its score (`rollout.score`: the world's reward for the step, or FILE.py:NAME), and of
what a search has written `rollout: logged` reads groups of siblings with their values as rewards. Every two steps of
different value are a pair. Contrastive preference learning, also CPL, is `cpl_contrastive`.
"""

from gxpo.definition import Definition
from gxpo.objectives.preference_pairs import PreferencePairs
from gxpo.rollouts.step_candidates import StepCandidates

step_apo = Definition(
    name="step_apo",
    doc=__doc__,
    title="CPL: Critical Plan Step Learning Boosts LLM Generalization in Reasoning Tasks",
    arxiv="2409.08642",
    authors="Wang, Tianlong and Chen, Junzhe and Han, Xueting and Bai, Jing",
    year=2024,
    formula="l = -log sigmoid(beta (s_w - s_l) - (V_w - V_l)), s = sum_t log(pi/ref) over a step",
    evidence="secondary",
    keys={
        "objective": PreferencePairs,
        "objective.pairs": "ordered",
        "objective.beta": 0.3,
        "objective.gap_margin": 1.0,
        "rollout": StepCandidates,
    },
    refuses={"objective.kl.place": ("reward",)},
    cost="k actions a step and a score of each; a frozen reference model",
)
