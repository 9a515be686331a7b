r"""PORTool: tree rollouts over tool calls; step advantages among siblings of a fork.

R(s)   = mean over the attempts i through step s of gamma^(T_i - t) R_i + well_formed,  gamma 0.95, t the step's turn
A(s,i) = w_1 (R_i - mean_g) / std_g + w_2 (R(s) - mean_fork) / std_fork,  w_1 = w_2 = 1
n first steps; after each turn f forks of every open attempt, of which n less those that are over go on.

Choices. From summaries; there is no code. f = 2 and equal weights are guesses; the n that go on are drawn uniformly.
What of a step is well formed pays 0: its size is not known (`credit.well_formed`). The decay counts from the attempt's
end (`credit.discount_from: begin` from its beginning): the summaries leave it open. The n first steps are no fork, so
that without forks this is GRPO (`credit.first_steps: true` compares them).
"""

from gxpo.algorithms.credit.fork_relative import fork_advantage
from gxpo.parts.definition import Definition
from gxpo.sampling.rollouts.branching import TurnBranches

portool = Definition(
    name="portool",
    doc=__doc__,
    title="PORTool: Tool-Use LLM Training with Rewarded Tree",
    arxiv="2510.26020",
    authors="Wu, Feijie and Zhu, Weiwu and Zhang, Yuxiang and Chatterjee, Soumya and Zhu, Jiarong and Mo, Fan and "
    "Luo, Rodin and Gao, Jing",
    year=2025,
    formula="A = z_g(R_i) + z_fork(R(s)), R(s) = mean over attempts through s of 0.95^(turns after s) R_i",
    evidence="reconstruction",
    keys={
        "credit": fork_advantage,
        "rollout": TurnBranches,
        "rollout.choose": "uniform",
        "rollout.initial": "all",
        "rollout.group_size": 8,
    },
    cost="the turns of open attempts that are not chosen; the environment is restored for every fork",
)
