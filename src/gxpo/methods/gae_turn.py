r"""GAE over turns: turn-level generalized advantage estimation for agents, with the value at the turn's beginning.

delta_k = r_k + gamma V_{k+1} - V_k;   A_k = delta_k + gamma lambda A_{k+1};   V_k read before the turn's first token
L = PPO's clip + 0.5 mean_k (V_k - target_k)^2 / 2 at first tokens, target_k = A_k + V_k of the start of the step

Bi-level GAE (VAGEN, RAGEN) is `credit.level: both`: over turns with `turn_discount`, each turn's last token is then
paid A_k + V_k, and GAE runs over the turn's tokens. VAGEN: target_at all, anchor last, turn_discount 0.95, lam 0.95,
whiten token. With lambda 1 and no discount it would be GAE over tokens, and is refused.

Choices. gamma 1 and lambda 1 as in verl; Turn-PPO's figures (0.99, 0.9) and its ratio of whole turns: `gae_turn@paper`,
from summaries, since its code isn't public. Not whitened (Agent-R1 whitens over turns: `steppo`). The recursion is that
of Agent-R1 and of HiPER's baseline. The value is trained where it is read, as HiPER's baseline does; Agent-R1 trains it
on all tokens of the turn (`credit.target_at: all`), and reads it at the first. Agent-R1 takes a truncated trajectory
for one that is over, and so does this. Head and optimiser as in `gae`.
"""

from gxpo.algorithms.credit.gae import Gae
from gxpo.algorithms.objectives.value import ValueRegression
from gxpo.parts.definition import Definition

gae_turn = Definition(
    name="gae_turn",
    doc=__doc__,
    title="Turn-PPO: Turn-Level Advantage Estimation with PPO for Improved Multi-Turn RL in Agentic LLMs",
    arxiv="2512.17008",
    authors="Li, Junbo and Zhou, Peng and Meng, Rui and Vadera, Meet P. and Li, Lihong and Li, Yang",
    year=2025,
    formula="A_k = r_k + g V_{k+1} - V_k + g l A_{k+1} over turns; L = clip loss + 0.5 mean_k (V_k - target_k)^2 / 2",
    evidence="secondary",
    keys={
        "credit": Gae,
        "credit.level": "turn",
        "credit.target_at": "anchor",
        "objective.add.value": ValueRegression,
    },
    paper_defaults={"credit.turn_discount": 0.99, "credit.lam": 0.9, "objective.ratio": "turn"},
    cost="a forward pass for the values at the start of the step; one vector of parameters",
)
