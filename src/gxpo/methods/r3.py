r"""R^3: replay of the other verdict into uniform groups, reflection on stored failures, ranks of truncated answers.

all wrong: + 1 stored right row of the task; all right: + 1 stored wrong row; A over all of them (four and one:
-0.447214 x 4 and 1.788854, or the negative).   Right below 1/2 the last time: G more attempts with a stored failure in
the prompt, a group of their own.   Truncated, not right: r + 0.1 rank / (N - 1), rank by how many truncated members j
it dominates: peak_i > peak_j and mean_i < mean_j; peak: mean of the largest fifth of the token entropies, mean: of all

Choices. The method section was read up to the weight of replayed rows: 1 here (`rollout.coef`); k = 1, 1/2, the words
of the prompt and a fifth are ours. The paper ranks by sort order, so that three who dominate nobody have 2/3, 1/3 and
0; here they share 1/3. Its R_max is not known to us; 0.1 stays far below a right answer. It is above a finished wrong
one, so that running into the limit may be learnt: so it was in our study, where accuracy fell. `credit.least: -0.1`
with `credit.most: 0` does not pay for it. Pushing down a stored failure is off policy: ratios are over the log-probs of
its time. Rows with a failure in the prompt are not stored. `rollout.how: once` leaves them out.
"""

from gxpo.algorithms.credit.baselines import unfinished_by_rank
from gxpo.algorithms.signals.structural_entropy import structural_entropy
from gxpo.parts.definition import Definition
from gxpo.sampling.rollouts.replay import Replay

r3 = Definition(
    name="r3",
    doc=__doc__,
    title="R^3: Replay, Reflection, and Ranking Rewards for LLM Reinforcement Learning",
    arxiv="2601.19620",
    authors="Jiang, Zhizheng and Zhao, Kang and Xu, Weikai and Lin, Xinkui and Liu, Wei and Luan, Jian and others",
    year=2026,
    formula="uniform groups + a stored row of the other verdict; q + failure; truncated: r + c rank(peak, -mean)",
    evidence="paper",
    keys={
        "rollout": Replay,
        "rollout.into": "uniform",
        "rollout.statistics": "mixed",
        "rollout.replays": 1,
        "rollout.min_stored": 1,
        "rollout.choice": "random",
        "rollout.how": "reflect",
        "signal.structural_entropy": structural_entropy,
        "credit": unfinished_by_rank,
        "objective.ratio_over": "behaviour",
    },
    cost="as many attempts again at tasks that failed before; a forward pass for entropies",
)
