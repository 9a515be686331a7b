r"""StepPO: turn-level PPO for agents: GAE over turns, whitened over turns.

delta_k = r_k + gamma V_{k+1} - V_k;   A_k = delta_k + gamma lambda A_{k+1};   A = (A_k - mean) / (std + 1e-8)
L = PPO's clip by the token's ratio + 0.5 mean_t (V_t - (A_k + V_k))^2 / 2 over all tokens of the turn

Choices. As in the released code: V_k is read before the turn's first token but trained on all tokens of the turn, the
ratio is the token's (the paper's step is in advantage and critic), std with ddof 1, gamma 1 and lambda 1. Without
whitening and with the value trained where it is read this is `gae_turn`. Its scaling of rewards by a running std, an
option there, is not part of it here. Its critic's loss is verl's, which clips values at +-0.5 from those at the
start of the step by default: not here, `objective.add.value.clip` (`steppo@paper`).
"""

from gxpo.algorithms.credit.gae import Gae
from gxpo.algorithms.objectives.value import ValueRegression
from gxpo.parts.definition import Definition

steppo = Definition(
    name="steppo",
    doc=__doc__,
    title="StepPO: Step-Aligned Policy Optimization for Agentic Reinforcement Learning",
    arxiv="2604.18401",
    authors="Wang, Daoyu and Li, Qingchuan and Cheng, Mingyue and Yu, Shuo and Ouyang, Jie and Liu, Qi and "
    "Chen, Enhong",
    year=2026,
    formula="A_k = r_k + g V_{k+1} - V_k + g l A_{k+1}; A = (A_k - mean) / (std + 1e-8) over the batch's turns",
    evidence="reference-code",
    keys={
        "credit": Gae,
        "credit.level": "turn",
        "credit.whiten": "turn",
        "objective.add.value": ValueRegression,
    },
    paper_defaults={"objective.add.value.clip": 0.5},
    cost="a forward pass for the values at the start of the step; one vector of parameters",
    code="AgentR1/StepPO@26107f1d6d4c5438abe29b21a6ad085d8d1d4ac9 arft/core_algos.py arft/ray_agent_trainer.py",
)
