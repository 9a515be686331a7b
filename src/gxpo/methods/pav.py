r"""PAV: process advantages: step progress under a prover policy (best of K), added to the outcome advantage.

A = (R - mean_g R) + alpha (V^mu(end of the step) - V^mu(its beginning)),   alpha 5
V^mu = 1 - (1 - V)^K: mu is the best of K = 4 attempts of the policy, V the mean outcome of 9 continuations

Choices. From excerpts of the paper (its eq. 1, 4, 5 and appendix E; no code was found): alpha is 5 for its model of 2
billion parameters, 3 for that of 9, and 0.5 to 6 all help; K is another paper's. The gradient is that of Q^pi + alpha
A^mu: a step's progress is an advantage of that step alone, not of those before. Outcomes are not divided by their std,
since alpha weighs one chance against another. The paper trains a model to predict A^mu; here it is measured in every
step, so nothing is learnt but the policy. The prover is the best of K of the policy itself; others, such as a weaker
model, aren't built. Steps end with a newline in the paper, here with a comma, as in the built-in arithmetic
(`segment.text`).
"""

from gxpo.credit.value_delta import ValueDelta
from gxpo.definition import Definition
from gxpo.rollouts.monte_carlo_values import MonteCarloValues
from gxpo.segments import Delimiter

pav = Definition(
    name="pav",
    doc=__doc__,
    title="Rewarding Progress: Scaling Automated Process Verifiers for LLM Reasoning",
    arxiv="2410.08146",
    authors="Setlur, Amrith and Nagpal, Chirag and Fisch, Adam and Geng, Xinyang and Eisenstein, Jacob and "
    "Agarwal, Rishabh and Agarwal, Alekh and Berant, Jonathan and Kumar, Aviral",
    year=2024,
    formula="A = R - mean_g + 5 (V^mu(next step) - V^mu(this step)), V^mu = 1 - (1 - V)^4",
    evidence="secondary",
    keys={
        "credit.scale": "none",
        "credit.add.value_difference": ValueDelta,
        "credit.add.value_difference.best_of": 4,
        "credit.add.value_difference.factor": 5.0,
        "rollout": MonteCarloValues,
        "segment": Delimiter,
        "segment.text": ",",
    },
    cost="9 continuations from every step of every attempt, generated and discarded",
)
