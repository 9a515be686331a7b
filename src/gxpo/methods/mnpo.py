r"""MNPO: margins against a mixture of the reference and the policy's own past, regressed to a target.

s_i = sum_t (log policy - m),   m = rho log reference + (1 - rho) mean_j log policy_j,   rho 1/3, the last 2 policies
L = mean over groups of the mean over their pairs of (s_better - s_worse - 1 / (2 eta))^2,   eta 0.1

Choices. From a summary of the authors' code. It takes means over tokens and eta 0.0075, a target of 66.7 that no mean
of log-probs reaches, so that its gradient is nearly that of a linear loss, and never reads the weights that it is
configured with: here sums, eta as in IPO, equal weights. A past policy is kept every 10 steps
(`signal.opponents.every`; theirs: the policies of earlier rounds of training). Before the first one the reference has
the whole mixture, where the code leaves the share out. Pairs by verdict of the step's own rollouts.
"""

from gxpo.definition import Definition
from gxpo.objectives.preference_pairs import PreferencePairs
from gxpo.signals.opponents import Opponents

mnpo = Definition(
    name="mnpo",
    doc=__doc__,
    title="Multiplayer Nash Preference Optimization",
    arxiv="2509.23102",
    authors="Wu, Fang and Huang, Xu and Xuan, Weihao and others",
    year=2025,
    formula="L = mean_pairs (s_w - s_l - 1 / (2 eta))^2, s = log pi - rho log ref - (1 - rho) mean_j log pi_j",
    evidence="secondary",
    keys={
        "objective": PreferencePairs,
        "objective.form": "ipo",
        "objective.reference": "opponents",
        "signal.opponents": Opponents,
    },
    refuses={"objective.kl.place": ("reward",)},
    cost="a forward pass for each policy kept, and their parameters, beside the reference's",
)
