r"""Knapsack RL: a fixed rollout budget split across prompts by the chance of a mixed group times what it can raise.

max sum_q (1 - p^n - (1 - p)^n) p (1 - p)^2 with sum_q n_q = the budget and 2 <= n_q <= 128;   A = GRPO's over n_q rows

Choices. Read in summaries and in two ports that agree; the authors' code was not found. The value is concave in n, so
greedy allotment is the optimum that their dynamic programme finds (`rollout.solver: knapsack` runs one). p is the
discounted success rate of earlier steps, drawn towards the mean over all tasks; theirs is the last epoch's, with p = 1
at two attempts and what is left over to p = 0. Where a sequence mean is taken, as by default, tasks with more attempts
weigh more: `weight.by_size: group_weight` with `weight.by_size.curve: equal_groups` gives each group the same weight.
"""

from gxpo.definition import Definition
from gxpo.rollouts.adaptive_group_size import AdaptiveGroupSize

knapsack_rl = Definition(
    name="knapsack_rl",
    doc=__doc__,
    title="Knapsack RL: Unlocking Exploration of LLMs via Optimizing Budget Allocation",
    arxiv="2509.25849",
    authors="Li, Ziniu and Chen, Congliang and Yang, Tianyun and Ding, Tian and Sun, Ruoyu and Zhang, Ge and "
    "Huang, Wenhao and Luo, Zhi-Quan",
    year=2025,
    evidence="secondary",
    keys={"rollout": AdaptiveGroupSize, "rollout.value": "mixed_gain"},
    cost="none in samples; two numbers a task in the checkpoint; useful only where tasks repeat",
)
