r"""Polychromic objectives: a set of attempts is scored by mean reward times diversity, and its members share the score.

f(set) = mean R * (number of different attempts) / n;   A_i = mean of f over sets with i - mean of f over all sets

Choices. Sets have 2 members (the paper's number is open in our source), so that small groups have many. The mean is
over all of them, in closed form, where the paper draws a few. An attempt is told from another by its tokens; for texts
a level such as `credit.same: info.answer` says more. The group is the branching state: vine sampling at later states,
and GAE elsewhere, are not built. The paper's KL per state is `objective.kl.coef`.
"""

from gxpo.credit.set_relative import SetRelative
from gxpo.keys import Definition

polychromic = Definition(
    name="polychromic",
    title="Polychromic Objectives for Reinforcement Learning",
    arxiv="2509.25424",
    authors="Hamid, Jubayer Ibn and Orney, Ifdita Hasan and Xu, Ellen and Finn, Chelsea and Sadigh, Dorsa",
    year=2025,
    idea="reward sets of attempts that are good and differ: a wrong but different attempt can gain from its set",
    formula="A_i = E[f | i in set] - E[f], f = mean R * (different attempts / n)",
    evidence="secondary",
    keys={"credit": SetRelative},
    choices="all sets of 2 instead of drawn ones; told apart by tokens; the group's start is the only branching state",
)
