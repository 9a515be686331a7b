r"""PAV: process advantages: step progress under a prover policy (best of K), added to the outcome advantage.

A = (R - mean_g R) + alpha (V^mu(end of the step) - V^mu(its beginning)),   alpha 5
V^mu = 1 - (1 - V)^K: mu is the best of K = 4 attempts of the policy, V the mean outcome of 9 continuations

Choices. From the paper (v1: eq. 1 to 5, appendices C to E). alpha is 5 for its model of 2 billion parameters, 3 for
that of 9, and 0.5 to 6 all help. Its provers in RL are SFT models of 2 or 9 billion parameters, the weaker the better,
and its analysis is of the best of K of the policy, 1 - (1 - V)^K as here, which it uses in search, with K from 2 to 32.
It trains a model to predict V, from 20 continuations a step, that then stays as it is; here V is measured in every
step, so nothing is learnt but the policy. The gradient is that of Q^pi + alpha A^mu: a step's progress is an advantage
of that step alone, not of those before. There a learnt value of Q^pi + alpha A^mu is subtracted; here the group's mean
outcome. Outcomes are not divided by their std, since alpha weighs one chance against another. Steps end with a newline
(`segment.text`). Under `pav@paper`: 20 continuations, and its KL to the first policy and learning rate.
"""

from gxpo.algorithms.credit.value_delta import ValueDelta
from gxpo.algorithms.segments import Delimiter
from gxpo.parts.definition import Definition
from gxpo.sampling.rollouts.monte_carlo_values import MonteCarloValues

pav = Definition(
    name="pav",
    doc=__doc__,
    title="Rewarding Progress: Scaling Automated Process Verifiers for LLM Reasoning",
    arxiv="2410.08146",
    authors="Setlur, Amrith and Nagpal, Chirag and Fisch, Adam and Geng, Xinyang and Eisenstein, Jacob and "
    "Agarwal, Rishabh and Agarwal, Alekh and Berant, Jonathan and Kumar, Aviral",
    year=2024,
    formula="A = R - mean_g + 5 (V^mu(next step) - V^mu(this step)), V^mu = 1 - (1 - V)^4",
    evidence="paper",
    keys={
        "credit.scale": "none",
        "credit.add.value_difference": ValueDelta,
        "credit.add.value_difference.best_of": 4,
        "credit.add.value_difference.factor": 5.0,
        "rollout": MonteCarloValues,
        "segment": Delimiter,
        "segment.text": "\n",
    },
    paper_defaults={"rollout.samples": 20, "objective.kl.coef": 0.001, "optim.lr": 1e-7},
    cost="9 continuations from every step of every attempt, generated and discarded",
)
