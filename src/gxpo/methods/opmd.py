r"""OPMD: online policy mirror descent (Kimi k1.5): group-mean baseline and a squared log-ratio penalty.

D_i = sum_t (log policy - log old);   L = mean_i -(r_i - mean_g r) D_i + (tau / 2) D_i^2,   tau 0.1

Its gradient is that of the regression [r - tau log Z - tau D]^2 / (2 tau), the condition of optimality of reward - tau
KL(policy || old), with the group's mean for tau log Z.

Choices. From the report (arXiv 2501.12599v4, eqs. 2 and 3); Kimi's code is not public. tau is not stated there: ROLL's.
The baseline is the mean, which the report finds effective; `objective.baseline: log_mean_exp` is its first estimate of
tau log Z. Not done: the optimiser is reset at every iteration there, and its length reward and its samplers are left
out. Sums over the sequence, as in the report; ROLL and verl (`dro`) have `objective.level: token`, which lacks the
products of different tokens; Trinity-RFT's `opmd` has no square: -(r - mean) log pi over 1 + tau, a mean over tokens.
REBEL's regression over pairs is GVPO's: see `group_variance`. Advantages are not read.
"""

from gxpo.algorithms.objectives.sequence_losses import SquaredLogRatio
from gxpo.parts.definition import Definition

opmd = Definition(
    name="opmd",
    doc=__doc__,
    title="Kimi k1.5: Scaling Reinforcement Learning with LLMs",
    arxiv="2501.12599",
    authors="{Kimi Team}",
    year=2025,
    evidence="paper",
    keys={"objective": SquaredLogRatio},
    refuses={"objective.kl.place": ("reward",)},
)
