r"""MASPRM: a search over the calls of a team values every agent's step; a head learns the values, agents their steps'.

V(s) = mean outcome of the search's attempts through the state after a call
A = V(after the call) - V(before it) for every token of it
L = clip loss + 0.5 mean over calls of (value(call's last token) - V)^2 / 2

Choices. The paper trains a value model by itself and uses it to guide search at inference, which is left out; taken is
the search (all ends scored and backed up, down from the root by q + 2 sqrt(ln N / n), 4 candidates a call) and its
target, the mean return below. That the same values credit the agents' calls is ours: over an attempt they add up to
outcome - mean outcome. The head is linear in units of the outcome and reads the policy's hidden states, where theirs
has tanh, and targets of +-1 at atanh scale.
"""

from gxpo.credit.tree_progress import TreeProgress
from gxpo.keys import Definition
from gxpo.objectives.value import ValueRegression
from gxpo.rollouts.team_search import TeamSearch

masprm = Definition(
    name="masprm",
    title="MASPRM: Multi-Agent System Process Reward Model",
    arxiv="2510.24803",
    authors="Yazdani, Milad and Mostajabdaveh, Mahdi and Zhou, Zirui and Xiong, Ying",
    year=2025,
    idea="returns of a search over who says what are values of each agent's step, without labels of steps",
    formula="A = V(s') - V(s), V the mean outcome of the search below; value head: mean_calls (value - V(s'))^2",
    evidence="reconstruction",
    keys={
        "credit": TreeProgress,
        "rollout": TeamSearch,
        "rollout.values": "mean",
        "rollout.backup": "all",
        "rollout.following": "root",
        "rollout.greedy": True,
        "objective.add.value": ValueRegression,
    },
    choices="the values credit the policy, which the paper does not do; no guidance by the head at inference",
    cost="4 candidates for every call that the search goes on from; a value head",
)
