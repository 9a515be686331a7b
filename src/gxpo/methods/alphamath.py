r"""AlphaMath: imitation of MCTS rollouts weighted by outcome, plus a value head fitted to the tree's state values.

V(s) = mean outcome of the search's attempts through the state after a step
L = mean over attempts and tokens of -r log policy  +  0.5 mean over steps of (value(step's last token) - V)^2 / 2

Choices. The search is the authors' code's: from the root down by q + 1.5 p sqrt(N) / (1 + n), p the geometric mean of
the probabilities of the step's tokens, 5 candidates a step, every end scored and backed up as +-1. There a step that is
no end is backed up with the value head's estimate and the next selection begins at the root; here that estimate is not
used, and the search goes on below the step. They train between rounds of search, by the mean of -log policy over the
tokens of right solutions and a mean squared error of tanh of a linear head to q; here in every step, on the attempts of
its own search, -r log policy with r the outcome (0: not imitated, but counted), and a linear head in units of the
outcome, where q is 2 V - 1. A step is 1/8 of the longest answer (theirs: a line, with code that is run). Left out: the
head in the search, beam search by steps at inference.
"""

from gxpo.algorithms.credit.value_delta import ValueDelta
from gxpo.algorithms.objectives.surrogate import log_likelihood
from gxpo.algorithms.objectives.value import ValueRegression
from gxpo.parts.definition import Definition
from gxpo.sampling.rollouts.search import Search

alphamath = Definition(
    name="alphamath",
    doc=__doc__,
    title="AlphaMath Almost Zero: process Supervision without process",
    arxiv="2405.03553",
    authors="Chen, Guoxin and Liao, Minpeng and Li, Chengxi and Fan, Kai",
    year=2024,
    formula="L = mean -r log pi + 0.5 mean_steps (value - V)^2 / 2, V the mean outcome of the search below the step",
    evidence="reference-code",
    code="MARIO-Math-Reasoning/Super_MARIO@c11d2f2f974c mcts_math/nodes/mcts_node.py mcts_math/agents/mcts.py "
    "implementation_details.md",
    keys={
        "credit.center": "none",
        "credit.scale": "none",
        "credit.add.tree_progress": ValueDelta,
        "credit.add.tree_progress.value": "pieces",
        "credit.add.tree_progress.factor": 0.0,
        "credit.add.tree_progress.target": "last",
        "rollout": Search,
        "rollout.values": "mean",
        "rollout.backup": "all",
        "rollout.following": "root",
        "rollout.selection": "puct",
        "rollout.exploration": 1.5,
        "rollout.width": 5,
        "rollout.greedy": True,
        "objective.surrogate": log_likelihood,
        "objective.add.value": ValueRegression,
    },
    cost="a sampling call for every piece of the search; a value head",
)
