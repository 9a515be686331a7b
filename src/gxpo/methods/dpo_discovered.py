r"""Discovered PO: discovered policy optimisation: a meta-learned drift function in place of the clip.

J = A rho - f;   A > 0: f = relu(z - 2 tanh(z / 2)), z = (rho - 1) A;   A < 0: f = relu(z - 0.6 tanh(z / 0.6)),
z = A log rho

f and its slope are 0 at rho = 1, so every step is a mirror-learning step. Rewarded tokens lose gradient gradually; for
punished ones the loss turns and pulls those back that became very unlikely.
Choices. The paper calls it DPO; that name is direct preference optimization here (`dpo`). The loss of the first
author's PureJaxRL, to which the paper's repository refers, a mean over tokens as there over steps; the advantage is
group-relative, where theirs is GAE standardised over the minibatch.
"""

from gxpo.algorithms.objectives.surrogate_penalties import drift
from gxpo.parts.definition import Definition

dpo_discovered = Definition(
    name="dpo_discovered",
    doc=__doc__,
    title="Discovered Policy Optimisation",
    arxiv="2210.05639",
    authors="Lu, Chris and Kuba, Jakub Grudzien and Letcher, Alistair and others",
    year=2022,
    formula="J = A rho - relu(z - s tanh(z / s)), z = (rho - 1) A, s = 2 | z = A log rho, s = 0.6",
    evidence="reference-code",
    code="luchris429/purejaxrl@31756b197773 purejaxrl/dpo_continuous_action.py",
    keys={"objective.surrogate": drift, "objective.aggregate": "token_mean"},
)
