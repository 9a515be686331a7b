r"""KTO: single answers, each labelled good or bad, valued against a reference point by a bounded function.

s_i = sum_t (log policy - log reference);   z0 = max(0, mean of s over the step), a constant
l = lambda_D (1 - sigmoid(beta (s - z0))) of a good answer, lambda_U (1 - sigmoid(beta (z0 - s))) of a bad one
L = mean over groups of the mean over their answers of l,   beta 0.1

Choices. Authors' code, but for z0: there it is the mean log-ratio of answers under other questions than their own,
which costs a forward pass and is a biased estimate of the KL; here that of the step's own answers.
`objective.unpaired_against: zero` leaves it out. lambda_D and lambda_U are `objective.success_weight` and
`objective.failure_weight`; the paper asks for lambda_D n_D / (lambda_U n_U) from 1 to 4/3. Labels are verdicts of the
step's own rollouts, or come with the data (rollout `logged`, columns `completion` and `label`). The code's mean is
over answers; here questions count alike, however many answers they have. `weight.NAME: group_weight` with `statistic:
size` and a curve of yours that divides it by its mean counts answers alike.
"""

from gxpo.algorithms.objectives.preference_pairs import PreferencePairs
from gxpo.parts.definition import Definition

kto = Definition(
    name="kto",
    doc=__doc__,
    title="KTO: Model Alignment as Prospect Theoretic Optimization",
    arxiv="2402.01306",
    authors="Ethayarajh, Kawin and Xu, Winnie and Muennighoff, Niklas and Jurafsky, Dan and Kiela, Douwe",
    year=2024,
    formula="l = lambda_D (1 - sigmoid(beta (s - z0))) if good, "
    "lambda_U (1 - sigmoid(beta (z0 - s))) if bad, s = sum_t log(pi/ref)",
    evidence="reference-code",
    code="ContextualAI/HALOs@192a6e84253c78cd3aca0b7f68773d217c32c21f trainers.py",
    keys={
        "objective": PreferencePairs,
        "objective.pairs": "none",
        "objective.form": "prospect",
        "objective.unpaired_against": "batch",
    },
    refuses={"objective.kl.place": ("reward",)},
    cost="a frozen reference model and its forward pass over the rollouts",
)
