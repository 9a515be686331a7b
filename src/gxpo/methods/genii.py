r"""Genii (mostly ours): a panel whose judges are weighed by their agreement with the others, and preference pairs of
what they prefer.

w_k = mean over the other judges of 1 - |x_k - x_j|;   r = sum_k w_k x_k / sum_k w_k;   L as in DPO on pairs by r

Choices. From an abstract, and a stand-in: the paper trains the judges themselves, each on pairs by the vote of the
others. Here the panel `scoring.options.judge.panel` is frozen, and what it prefers after polling trains the policy: the
judge is the policy where the tasks ask for verdicts. Of votes, w is the share of the others that vote alike: a, a, b
has 1/2, 1/2, 0. A bias that all judges share agrees with itself and is rewarded.
"""

from gxpo.algorithms.objectives.preference_pairs import PreferencePairs
from gxpo.parts.definition import Definition

genii = Definition(
    name="genii",
    doc=__doc__,
    title="Mitigating Judgment Preference Bias in Large Language Models through Group-Based Polling",
    arxiv="2510.08145",
    authors="Liu, Shuliang and others",
    year=2025,
    evidence="reconstruction",
    keys={
        "objective": PreferencePairs,
        "objective.pairs": "outcome",
        "reward": "judge",
        "scoring.options": {"judge": {"combine": "agreement"}},
    },
    refuses={"objective.kl.place": ("reward",)},
    cost="an answer of each judge for each attempt; a frozen reference model",
)
