r"""AlphaMath: a search labels its own steps; the policy imitates the solutions it found, a head learns the steps'
values.

V(s) = mean outcome of the search's attempts through the state after a step
L = mean over attempts and tokens of -r log policy  +  0.5 mean over steps of (value(step's last token) - V)^2 / 2

Choices. The paper trains between rounds of search with supervised learning on right solutions; here that is done in
every step, on the attempts of its own search, -r log policy with r the outcome (0: not imitated). The search is plain:
from the root down by q + c sqrt(ln N / n), every end scored and backed up, values +-1; the paper's selection has the
step's probability as prior (PUCT), and takes the value head's estimate where a step is no end. Left out: the head in
the search, and beam search by steps at inference. A step is 1/8 of the longest answer (the paper: a line, with code
that is run); a head that is linear, in units of the outcome, where theirs is tanh of one.
"""

from gxpo.credit.tree_progress import TreeProgress
from gxpo.keys import Definition
from gxpo.objectives.gate_log_likelihood import LogLikelihood
from gxpo.objectives.value import ValueRegression
from gxpo.rollouts.search import Search

alphamath = Definition(
    name="alphamath",
    title="AlphaMath Almost Zero: process Supervision without process",
    arxiv="2405.03553",
    authors="Chen, Guoxin and Liao, Minpeng and Li, Chengxi and Fan, Kai",
    year=2024,
    idea="the values that a tree search leaves at its nodes replace annotations of steps",
    formula="L = mean -r log pi + 0.5 mean_steps (value - V)^2 / 2, V the mean outcome of the search below the step",
    evidence="reconstruction",
    keys={
        "credit.center": "none",
        "credit.scale": "none",
        "credit.add.tree_progress": TreeProgress,
        "credit.add.tree_progress.progress": 0.0,
        "rollout": Search,
        "rollout.values": "mean",
        "rollout.backup": "all",
        "rollout.following": "root",
        "rollout.greedy": True,
        "objective.gate": LogLikelihood,
        "objective.add.value": ValueRegression,
    },
    choices="online: imitation of each step's right attempts; plain UCT without the head's estimates or priors",
    cost="a sampling call for every piece of the search; a value head",
)
