r"""OPMD: online policy mirror descent, the objective of Kimi k1.5: reward against a baseline, less a squared log-ratio.

D_i = sum_t (log policy - log old);   L = mean_i -(r_i - mean_g r) D_i + (tau / 2) D_i^2,   tau 0.1

Its gradient is that of the regression [r - tau log Z - tau D]^2 / (2 tau), the condition of optimality of reward - tau
KL(policy || old), with the group's mean for tau log Z.

Choices. The baseline is the mean, as Kimi k1.5 trains; `objective.baseline: log_mean_exp` estimates tau log Z itself.
Sums over the sequence, as in the papers; ROLL and verl (`dro`) have `objective.level: token`, which lacks the products
of different tokens; Trinity-RFT's `opmd` has no square: -(r - mean) log pi over 1 + tau, a mean over tokens. Kimi's
code is not public. REBEL's regression over pairs is GVPO's: see `group_variance`.
Credit is not read.
"""

from gxpo.keys import Definition
from gxpo.objectives.sequence_losses import SquaredLogRatio

opmd = Definition(
    name="opmd",
    title="Kimi k1.5: Scaling Reinforcement Learning with LLMs",
    arxiv="2501.12599",
    authors="{Kimi Team}",
    year=2025,
    idea="mirror descent: rewards above the group's mean, held by the square of the log-ratio to the last policy",
    formula="L = mean_i -(r - mean_g r) D + (tau / 2) D^2, D = sum_t log(pi/old)",
    evidence="secondary",
    keys={"objective": SquaredLogRatio},
    refuses={"objective.kl.place": ("reward",)},
    choices="mean for tau log Z; sums over tokens, not token by token; tau 0.1 (ROLL)",
)
