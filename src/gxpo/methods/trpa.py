r"""TRPA: online preference loss (DPO form) over reward levels, with a KL trust region to the old policy.

z_i = mean_t (log policy - log reference);   l = -log sigmoid(0.1 c (z_better - z_worse)), c = 2.5 if better is right
L = mean over groups of the mean over pairs of l + 0.001 mean KL(policy || old)

Without two levels in the group: l = -log sigmoid(z) of a right answer, -log sigmoid(-z) of a wrong one.

Choices. The code has four levels: right; wrong in good format; incomplete; bad format. Here a level is a distinct
outcome, so the reward makes them (a tiered one, or correctness and format added); the factor 2.5 depends on the
verdict; on the loss in place of beta it is `objective.success_weight`. The unit is the group, then its pairs (the code:
all pairs of a micro-batch, and single answers only where that has no pair). KL(policy || old) is estimated from the old
policy's samples by rho log rho - rho + 1 (the code: k3), and 0 on the first update. The code asks for a KL to the
reference too, but only logs it. Advantages are not read.
"""

from gxpo.algorithms.objectives.mirror_kl import MirrorKl
from gxpo.algorithms.objectives.preference_pairs import PreferencePairs
from gxpo.parts.definition import Definition

trpa = Definition(
    name="trpa",
    doc=__doc__,
    title="Trust Region Preference Approximation: A simple and stable reinforcement learning algorithm for LLM "
    "reasoning",
    arxiv="2504.04524",
    authors="Su, Xuerui and Xie, Shufang and Liu, Guoqing and others",
    year=2025,
    formula="L = mean_pairs -log sigmoid(c beta (z_w - z_l)) + 0.001 KL(pi||old), z = mean_t log(pi/ref), c 2.5 or 1",
    evidence="reference-code",
    keys={
        "objective": PreferencePairs,
        "objective.pairs": "ordered",
        "objective.length_mean": True,
        "objective.success_slope": 2.5,
        "objective.unpaired": True,
        "objective.unpaired_beta": 1.0,
        "objective.add.mirror_kl": MirrorKl,
        "objective.add.mirror_kl.coef": 0.001,
        "objective.add.mirror_kl.aggregate": "token_mean",
    },
    paper_defaults={"rollout.group_size": 16, "optim.lr": 4e-7},
    refuses={"objective.kl.place": ("reward",)},
    cost="a frozen reference model and its forward pass over the rollouts",
    code="XueruiSu/Trust-Region-Preference-Approximation@f372585ed6ec230aa354feb9c8e24e970b615846 "
    "verl/trainer/ppo/core_algos.py verl/workers/actor/dp_actor.py main_TRPA.sh",
)
