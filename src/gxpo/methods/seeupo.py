r"""SeeUPO: turns are updated from the last to the first, each with credit corrected by what later turns' updates did.

M = A, the outcome less its group's mean, over the batch's std;  for turns k = T .. 1 (from the end):
  one step on   max(-M rho_k, -M clip(rho_k, 0.8, 1.2)),   rho_k = exp(mean over turn k of log pi/pi_old)
  M <- M clip(prod over turn k of pi_new / pi_old, 0.8, 1.2)

Choices. Read in a third party's implementation. pi_old is the policy at the start of the step, in the ratio and in the
correction. The ratio's bounds are the base's 0.2 (GSPO's are 3e-4 and 4e-4: `seeupo+gspo` takes objective.clip_low and
clip_high from there once objective.ratio=turn is decided). The batch's mean is taken off with its std; trajectories
count once. One optimiser step for each turn index, over all groups, where the paper's are mini-batches.
"""

from gxpo.credit import BatchWhiten
from gxpo.keys import Definition
from gxpo.learners.turns_reversed import TurnsReversed

seeupo = Definition(
    name="seeupo",
    title="SeeUPO: Sequence-Level Agentic-RL with Convergence Guarantees",
    arxiv="2602.06554",
    authors="Hu, Tianyi and others",
    year=2026,
    idea="a turn is an agent: agents are updated in reverse order, each knowing how those after it have changed",
    formula="for k = T..1: a step on turn k with credit M; M <- M clip(prod_{t in k} pi_new/pi_old, 0.8, 1.2)",
    evidence="secondary",
    keys={
        "update": TurnsReversed,
        "credit": BatchWhiten,
        "credit.center": "mean",
        "credit.over": "trajectories",
        "objective.ratio": "turn",
    },
    paper_defaults={"rollout.group_size": 8, "update.lr": 1e-6, "objective.kl.coef": 0.002},
    choices="pi_old is the start of the step throughout; clip 0.2 on the turn's ratio; one step for each turn index",
    cost="an update and a forward pass for each turn of the longest trajectory",
)
