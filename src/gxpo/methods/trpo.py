r"""TRPO: trust region policy optimization: natural gradient with line search under a KL limit of 0.01.

max E_old[rho A]  subject to  E[KL(pi_old || pi)] <= delta:
H x = g with H = F + 0.1 I by 10 conjugate gradients;  theta <- theta + c sqrt(2 delta / x^T H x) x,  c = 1, 1/2, 1/4...
until the surrogate is better and the KL within 1.5 delta

Choices. As in openai/baselines with its settings for MuJoCo; the first author's modular_rl has damping 1e-3, asks for a
tenth of the expected gain and for no bound on the KL. `update.slack: 1` holds the paper's constraint,
`update.damped_length: false` takes the length from F alone. F and the KL are estimated on the sampled tokens, F as the
mean of squared scores over all of them (baselines: over a fifth), KL(old || new) as E_old[rho - 1 - log rho]; full
distributions are not kept. Means are over tokens. The advantage is the base's, relative to the group, where theirs is
GAE standardised over the step. `optim.lr` is not used.
"""

from gxpo.algorithms.objectives.surrogate import unclipped
from gxpo.learning.natural_gradient import NaturalGradient
from gxpo.parts.definition import Definition

trpo = Definition(
    name="trpo",
    doc=__doc__,
    title="Trust Region Policy Optimization",
    arxiv="1502.05477",
    authors="Schulman, John and Levine, Sergey and Moritz, Philipp and Jordan, Michael I. and Abbeel, Pieter",
    year=2015,
    formula="theta += c sqrt(2 delta / x'Hx) x, H x = g, H = F + 0.1 I; c halves until E[rho A] is better and "
    "KL(old||new) <= 1.5 delta",
    evidence="reference-code",
    code="openai/baselines@ea25b9e8b234 baselines/trpo_mpi/trpo_mpi.py baselines/trpo_mpi/defaults.py "
    "baselines/common/cg.py",
    keys={
        "update": NaturalGradient,
        "objective.surrogate": unclipped,
        "objective.aggregate": "token_mean",
    },
    cost="11 gradients and some 25 forward passes a step; four copies of the trained parameters",
)
