r"""MASPRM: tree search over the calls of a multi-agent team; each call's advantage is its value difference.

V(s) = mean outcome of the search's attempts through the state after a call
A = V(after the call) - V(before it) for every token of it
L = clip loss + 0.5 mean over calls of (value(call's last token) - V)^2 / 2

Choices. The authors train a separate value model and use it to guide search at inference, which is left out; taken from
their code is the search (all ends scored and backed up as +-1, down from the root by q + 2 sqrt(ln N / max(n, 1)), 4
candidates a call, on with one of them where none is an end) and its target, the mean return below. There an end may be
visited, and counted, again, and trees whose root is beyond +-0.7 teach nothing. That the same values give the
advantages of the agents' calls is ours: over an attempt they add up to outcome - mean outcome. The head is linear in
units of the outcome and reads the policy's hidden states; theirs is fitted to atanh of q (by default with a
cross-entropy for targets in [0, 1]).
"""

from gxpo.algorithms.credit.value_delta import ValueDelta
from gxpo.algorithms.objectives.value import ValueRegression
from gxpo.parts.definition import Definition
from gxpo.sampling.rollouts.team_search import TeamSearch

masprm = Definition(
    name="masprm",
    doc=__doc__,
    title="MASPRM: Multi-Agent System Process Reward Model",
    arxiv="2510.24803",
    authors="Yazdani, Milad and Mostajabdaveh, Mahdi and Zhou, Zirui and Xiong, Ying",
    year=2025,
    formula="A = V(s') - V(s), V the mean outcome of the search below; value head: mean_calls (value - V(s'))^2",
    evidence="reference-code",
    code="milad1378yz/MASPRM@9480f7422ffb src/mcts.py src/train/preprocess_data.py src/train/trainer.py",
    keys={
        "credit": ValueDelta,
        "credit.value": "pieces",
        "credit.target": "last",
        "rollout": TeamSearch,
        "rollout.values": "mean",
        "rollout.backup": "all",
        "rollout.following": "root",
        "rollout.selection": "uct_counted",
        "rollout.greedy": True,
        "objective.add.value": ValueRegression,
    },
    cost="4 candidates for every call that the search goes on from; a value head",
)
