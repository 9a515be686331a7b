r"""GAE: token-level generalized advantage estimation (PPO), with a value head on the policy's hidden states.

delta_t = r_t + V_{t+1} - V_t;   A_t = delta_t + lambda A_{t+1}, lambda 1;   V_end = 0
L = PPO's clip + 0.5 mean_t (V - target)^2 / 2,   target_t = A_t + V_t with the values at the start of the step

Choices. discount 1 and lambda 1 as in verl (0.95 is common in agents); t runs over the trajectory's trainable tokens,
so observations never enter, as in newer verl and Agent-R1: the token after a turn's last is the next turn's first. Not
whitened (verl whitens over tokens: `credit.whiten: token`; so does the author's own code, over all steps with the
population std, with discount 0.99 and V of the last state where an episode was cut). The head shares the policy's body
and its optimiser; verl keeps a second model as critic, which has the value's gradient to itself. A trajectory cut at
the length limit is over: value 0 beyond it. A group of one learns, and so does a group of equal rewards. The head
begins at 0 and moves `learner.value_lr` times as fast as the rest.
"""

from gxpo.algorithms.credit.gae import Gae
from gxpo.algorithms.objectives.value import ValueRegression
from gxpo.parts.definition import Definition

gae = Definition(
    name="gae",
    doc=__doc__,
    title="High-Dimensional Continuous Control Using Generalized Advantage Estimation",
    arxiv="1506.02438",
    authors="Schulman, John and Moritz, Philipp and Levine, Sergey and Jordan, Michael I. and Abbeel, Pieter",
    year=2015,
    formula="A_t = r_t + V_{t+1} - V_t + lambda A_{t+1}; L = clip loss + 0.5 mean_t (V_t - (A_t + V_t)_old)^2 / 2",
    evidence="reference-code",
    keys={"credit": Gae, "objective.add.value": ValueRegression},
    cost="a forward pass for the values at the start of the step; one vector of parameters",
    code="joschu/modular_rl@6970cde3da265cf2a98537250fea5e0c0d9a7639 modular_rl/core.py",
)
