r"""Polychromic objectives: set-level reward (mean reward times diversity), shared by the members of each set.

f(set) = mean R * (number of different attempts) / n;   A_i = mean of f over sets with i - mean of f over all sets

Choices. Sets have 2 members (the paper's number is open in our source), so that small groups have many. The mean is
over all of them, in closed form, where the paper draws a few. Attempts are different where their tokens are; for texts
a level such as `credit.same: info.answer` says more. The group is the branching state: vine sampling at later states,
and GAE elsewhere, are not built. The paper's KL per state is `objective.kl.coef`.
"""

from gxpo.algorithms.credit.sets import by_sets
from gxpo.parts.definition import Definition

polychromic = Definition(
    name="polychromic",
    doc=__doc__,
    title="Polychromic Objectives for Reinforcement Learning",
    arxiv="2509.25424",
    authors="Hamid, Jubayer Ibn and Orney, Ifdita Hasan and Xu, Ellen and Finn, Chelsea and Sadigh, Dorsa",
    year=2025,
    evidence="secondary",
    keys={"credit": by_sets},
)
