r"""CPL (contrastive preference learning): preferences as regret, so that log-probs alone are compared, the worse less.

s_i = alpha sum_t log policy;   l = -log sigmoid(s_better - lambda s_worse),   alpha 0.1, lambda 0.5
L = mean over groups of the mean over the group's pairs of l

Choices. alpha is `objective.beta`, lambda `objective.bias`; 1 is the paper's CPL without conservatism. The paper
discounts steps of a segment, its code does not, and neither does this. `objective.nll` is a behaviour-cloning term on
the better one (theirs: a coefficient on all or on the better, and steps of it alone at first). Segments of continuous
control are whole answers here. Pairs by verdict of the step's own rollouts, or of the data (rollout `logged`). Critical
plan step learning, also CPL, is `step_apo`.
"""

from gxpo.algorithms.objectives.preference_pairs import PreferencePairs
from gxpo.parts.definition import Definition

cpl_contrastive = Definition(
    name="cpl_contrastive",
    doc=__doc__,
    title="Contrastive Preference Learning: Learning from Human Feedback without RL",
    arxiv="2310.13639",
    authors="Hejna, Joey and Rafailov, Rafael and Sikchi, Harshit and others",
    year=2023,
    formula="l = -log sigmoid(alpha sum_t log pi(y_w) - lambda alpha sum_t log pi(y_l))",
    evidence="reference-code",
    code="jhejna/cpl@b4f197307a88eef8df46ee0342d5d64a6b59b4a6 research/algs/cpl.py",
    keys={"objective": PreferencePairs, "objective.reference": "none", "objective.bias": 0.5},
    refuses={"objective.kl.place": ("reward",)},
)
