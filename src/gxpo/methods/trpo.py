r"""TRPO: the natural gradient of the surrogate, as far as a mean KL of 0.01 allows.

max E_old[rho A]  subject to  E[KL(pi_old || pi)] <= delta:
(F + 0.1 I) x = g by 10 conjugate gradients;  theta <- theta + c sqrt(2 delta / x^T F x) x,  c = 1, 0.8, 0.64, ... until
the surrogate is better and the KL within delta

Choices. From the abstract and common implementations: damping, iterations, shrinking are theirs. F and the KL are
estimated on the sampled tokens, F as the mean of squared scores, KL(old || new) as E_old[rho - 1 - log rho]; full
distributions are not kept. x^T F x is without the damping. Means are over tokens. Credit is the base's, against the
group, where the paper has returns from states. `update.lr` is not used.
"""

from gxpo.keys import Definition
from gxpo.learners.natural_gradient import NaturalGradient
from gxpo.objectives.gate import Unclipped

trpo = Definition(
    name="trpo",
    title="Trust Region Policy Optimization",
    arxiv="1502.05477",
    authors="Schulman, John and Levine, Sergey and Moritz, Philipp and Jordan, Michael I. and Abbeel, Pieter",
    year=2015,
    idea="the surrogate is believed only where the new policy is near the old one, so nearness bounds the step",
    formula="theta += c sqrt(2 delta / x'Fx) x, F x = g; c shrinks until E[rho A] is better and KL(old||new) <= delta",
    evidence="reconstruction",
    keys={
        "update": NaturalGradient,
        "objective.gate": Unclipped,
        "objective.aggregate": "token_mean",
    },
    choices="sampled-token Fisher and KL; group-relative credit; means over tokens",
    cost="11 gradients and some 25 forward passes a step; four copies of the trained parameters",
)
