r"""Uniform phantom (mostly ours): a panel of judges scores by the median of their n scores and n - 1 phantoms.

r = median(x_1 ... x_n, 1/n ... (n - 1)/n);   A as in GRPO

Choices. The paper places a facility on a line and trains nothing; that judges are its agents is ours. Strategy-proof
says that a judge which reports another score than its own moves the result away from its own at most. It does not say
that one judge has little influence: of .2, .9 and .95 the result is .667, and .9 if the first says 1.
`scoring.options.judge.combine=median` is without phantoms: then one of three judges alone moves nothing beyond the
others.
"""

from gxpo.parts.definition import Definition

uniform_phantom = Definition(
    name="uniform_phantom",
    doc=__doc__,
    title="Strategyproof and Proportionally Fair Facility Location",
    arxiv="2111.01566",
    authors="Aziz, Haris and Lam, Alexander and Lee, Barton E. and Walsh, Toby",
    year=2021,
    evidence="reconstruction",
    keys={"reward": "judge", "scoring.options": {"judge": {"combine": "uniform_phantom"}}},
    cost="an answer of each judge of the panel for each attempt",
)
