r"""PIPO: retrospective replay of the previous batch, scaled by the improvement of the mean reward since.

xi   = (mean reward now - mean of the last K) / std of the last K;   phi = xi, or 0.1 xi where it is negative
r^_i = phi G A_i / sum_j |A_j| for the rollouts of the step before: one clipped step on them, then GRPO's on the new

Choices. K = 8; nothing is repeated until there have been K steps. The first step's ratio is over the policy that
sampled the old batch, the second's over the one that sampled the new: `objective.ratio_over: behaviour`, the sampler's
log-probs. eps 1e-6 is added to std and to sum |A|. xi has no bound (`signal.improvement.bound`); where the last means
are all equal it is 0, in the code mean now - mean. The old batch is one optimiser step; the code cuts it, too, into
mini-batches. The authors' code and the paper differ. Its window of 8 holds the current step, so that 7 earlier ones are
compared with, and its std is the population's: `signal.improvement.window=7 signal.improvement.ddof=0`. Its older
version (GRPO, GSPO and DAPO on mathematics) stores every mean twice and compares a step with a window that it is part
of. Its replay for GRPO maximises min(rho, 1.2) r^ whatever the sign of r^: where r^ < 0, a token with a ratio above 1.2
has no gradient and one that fell is pushed down further. Here, and in its replay for GSPO, it is PPO's minimum. Its
loss is a token mean. Batches of different tasks differ in difficulty too, which xi cannot tell from improvement.
"""

from gxpo.algorithms.credit.baselines import retrospective
from gxpo.algorithms.signals.improvement import improvement
from gxpo.parts.definition import Definition
from gxpo.sampling.rollouts.stored_groups import GroupReplay

pipo = Definition(
    name="pipo",
    doc=__doc__,
    title="Policy Improvement Reinforcement Learning",
    arxiv="2604.00860",
    authors="Wang, Huaiyang and Li, Xiaojie and Wang, Deqing and Zhou, Haoyi and Huang, Zixuan and Yang, Yaodong and "
    "Li, Jianxin and Ban, Yikun",
    year=2026,
    formula="r^_i = phi(xi) G A_i / sum_j |A_j| on the previous batch, then A on the new one",
    evidence="reference-code",
    code="JacckMa/pipo_verl@8e8e63fbb4dd0b4fa990c46860854cf59fc60145 verl/trainer/ppo/layback_utils.py "
    "verl/trainer/ppo/core_algos.py verl/trainer/ppo/ray_trainer.py",
    keys={
        "credit": retrospective,
        "rollout": GroupReplay,
        "rollout.choice": "all",
        "rollout.max_groups": 0,
        "signal.improvement": improvement,
        "update.first": "replay",
        "objective.ratio_over": "behaviour",
    },
    cost="a second update per step on the stored rollouts of the previous step; 40-49% more time by the paper",
)
