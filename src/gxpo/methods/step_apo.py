r"""Step-APO (CPL, critical plan step learning): pairs of steps that begin at one state, offset by their values.

s_j = sum_t (log policy - log reference) over the step;   V_j the value of the state that it leads to
l = -log sigmoid(beta (s_better - s_worse) - (V_better - V_worse)),   V_better > V_worse,   beta 0.3
L = mean over the states of the mean over their pairs of l

Choices. The loss is the authors' code's, where V is a value in [-1, 1] that a search over plans of 200 iterations has
found for a step. Here a step's value is its score (`rollout.score`: the world's reward for the step, or FILE.py:NAME);
`rollout: search` with `rollout.trains: siblings` and `rollout.values: mean` takes V from a search, and `rollout:
logged` reads groups of siblings with their values as rewards. Every two steps of different value are a pair; theirs are
those of values above and below 0 (`objective.pairs: verdict`, `objective.success_at: 1e-9`), for the final solutions
the best and the worst alone, at .3 of their values. Where all steps of a state have one value there is no pair, and
nothing to learn: after ten such steps of a run a warning says so, and the score is to be looked at. Contrastive
preference learning, also CPL, is `cpl_contrastive`.
"""

from gxpo.algorithms.objectives.preference_pairs import PreferencePairs
from gxpo.parts.definition import Definition
from gxpo.sampling.rollouts.step_candidates import StepCandidates

step_apo = Definition(
    name="step_apo",
    doc=__doc__,
    title="CPL: Critical Plan Step Learning Boosts LLM Generalization in Reasoning Tasks",
    arxiv="2409.08642",
    authors="Wang, Tianlong and Chen, Junzhe and Han, Xueting and Bai, Jing",
    year=2024,
    formula="l = -log sigmoid(beta (s_w - s_l) - (V_w - V_l)), s = sum_t log(pi/ref) over a step",
    evidence="reference-code",
    code="keesh0410/CPL-Reasoning@61b99b45010ae3881fc0300a24e4421eb48f7d2a "
    "apo/LLaMA-Factory-0.8.3/src/llamafactory/train/dpo/trainer.py "
    "apo/LLaMA-Factory-0.8.3/my_scripts/policy_model_round1_apo.yaml gen_data/gen_policy_model_round1_apo_data.py",
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
