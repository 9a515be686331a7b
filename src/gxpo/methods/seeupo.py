r"""SeeUPO: sequential turn updates in reverse order, with advantages corrected by the later turns' ratios.

A = the outcome less its group's mean, over the batch's std, held in +-3;  c = 1;  for turns k = T .. 1 (from the end):
  one step on   max(-c A rho_k, -c A clip(rho_k, 0.8, 1.2))
  c <- clip(c clip(r_k)),  r_k = exp(mean over turn k of log pi_new/pi_old), both clips to (0.8, 1.2)

Choices. As in the authors' code (branch seeupo of modelscope/AgentEvolver): pi_old is the policy before the step on the
turn, so that rho is 1 with its one mini-batch a turn; turns are taken by their number from the beginning, the highest
first. `update.reduce=product update.old=step update.count=end` is the correction by the product over the turn since the
start of the step, with turns by their distance from the end. Where gxpo differs from it. A trajectory without turn k
sits out; there it is a row of copied tokens that is in the loss's mean, and its c drifts with those tokens. A group of
one has advantage 0, there its raw outcome (`credit.singleton`). Its launch files set algorithm.loss_mode: gspo, which
nothing reads: the ratio is the token's; at rho 1 that is the same. One optimiser step for each turn, over all groups.
"""

from gxpo.algorithms.credit.batch_whiten import batch_relative
from gxpo.learning.turns_reversed import TurnsReversed
from gxpo.parts.definition import Definition

seeupo = Definition(
    name="seeupo",
    doc=__doc__,
    title="SeeUPO: Sequence-Level Agentic-RL with Convergence Guarantees",
    arxiv="2602.06554",
    authors="Hu, Tianyi and Fu, Qingxu and Chen, Yanxi and Liu, Zhaoyang and Ding, Bolin",
    year=2026,
    formula="for k = T..1: a step on turn k with advantage c A; c <- clip(c clip(exp mean_{t in k} log pi_new/pi_old))",
    evidence="reference-code",
    code="modelscope/AgentEvolver@e59dea41e7211f31d04993bbb28c6666bd153e73 "
    "beyondagent/module/trainer/ba_ray_trainer.py launcher/qwen3_bfcl/qwen3-seeupo-bfcl.yaml "
    "context_manager_templates/cmt_linear_think.py",
    keys={
        "update": TurnsReversed,
        "credit": batch_relative,
        "credit.center": "mean",
        "credit.over": "trajectories",
        "credit.bound": 3.0,
        "credit.eps": 0.0,
        "objective.ratio": "turn",
    },
    paper_defaults={"rollout.group_size": 8, "optim.lr": 1e-6, "objective.kl.coef": 0.002},
    cost="an update and a forward pass for each turn of the longest trajectory",
)
