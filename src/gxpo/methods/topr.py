r"""TOPR: tapered off-policy REINFORCE: no ratio for successes, ratio truncated at 1 for failures.

A > 0: l = -A log pi(y);   A < 0: l = -stop(min(pi(y) / mu(y), 1)) A log pi(y);   L = mean_i l_i

Failures that have become unlikely under the policy are not pushed down further, and successes are learned however
unlikely they are: stable on old data without a KL term.
Choices. The ratio is the whole answer's, the product of its tokens' (ports take each token's: `{"objective.ratio":
"token", "objective.aggregate": "token_mean"}`), over the behaviour policy. Plain sums over tokens (horizon 1). The sign
is that of the outcome less its group's mean, not scaled; the paper chooses its baseline for the share of positives that
it gives. A ratio's logarithm is held in [-20, 20].
"""

from gxpo.algorithms.objectives.ratio_trajectory import sequence_sum
from gxpo.algorithms.objectives.surrogate_weights import tapered
from gxpo.parts.definition import Definition

topr = Definition(
    name="topr",
    doc=__doc__,
    title="Tapered Off-Policy REINFORCE: Stable and efficient reinforcement learning for LLMs",
    arxiv="2503.14286",
    authors="Le Roux, Nicolas and Bellemare, Marc G. and Lebensold, Jonathan and others",
    year=2025,
    evidence="secondary",
    keys={
        "objective.surrogate": tapered,
        "objective.ratio": sequence_sum,
        "objective.ratio_over": "behaviour",
        "objective.aggregate": "sequence_sum",
        "objective.horizon": 1.0,
        "credit.scale": "none",
    },
)
