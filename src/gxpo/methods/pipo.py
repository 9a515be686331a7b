r"""PIPO: once the next batch shows whether an update helped, the batch it was made on is learned from again.

xi   = (mean reward now - mean of the last K) / std of the last K;   phi = xi, or 0.1 xi where it is negative
r^_i = phi G A_i / sum_j |A_j| for the rollouts of the step before: one clipped step on them, then GRPO's on the new

Choices. From a detailed note on the paper's equations. K = 8; nothing is repeated until there have been K steps. The
first step's ratio is over the policy that sampled the old batch, the second's over the one that sampled the new:
`objective.ratio_over: behaviour`, the sampler's log-probs. eps 1e-6 is added to std and to sum |A|. xi is not bounded
in the paper (`signal.improvement.bound`); where the last K means are all equal it is 0. The old batch is the whole of
it, in one optimiser step. Batches of different tasks differ in difficulty too, which xi cannot tell from improvement.
"""

from gxpo.credit.retrospective import Retrospective
from gxpo.keys import Definition
from gxpo.learners.replayed_first import ReplayedFirst
from gxpo.rollouts.stored_groups import LastStepAgain
from gxpo.signals.improvement import Improvement

pipo = Definition(
    name="pipo",
    title="Policy Improvement Reinforcement Learning",
    arxiv="2604.00860",
    authors="Wang, Huaiyang and Li, Xiaojie and Wang, Deqing and Zhou, Haoyi and Huang, Zixuan and Yang, Yaodong and "
    "Li, Jianxin and Ban, Yikun",
    year=2026,
    idea="updates after which rewards rose are made a second time, those after which they fell are taken back a little",
    formula="r^_i = phi(xi) G A_i / sum_j |A_j| on the previous batch, then A on the new one",
    evidence="secondary",
    keys={
        "credit": Retrospective,
        "rollout": LastStepAgain,
        "signal.improvement": Improvement,
        "update": ReplayedFirst,
        "objective.ratio_over": "behaviour",
    },
    choices="ratios over the sampler's log-probs; no bound on xi; the whole old batch in one step",
    cost="a second update a step on the stored rollouts of the step before; 40-49% more time by the paper",
)
