r"""Knapsack RL: a fixed rollout budget split across prompts by the chance of a mixed group times what it can raise.

max sum_q (1 - p^n - (1 - p)^n) p (1 - p)^2 with sum_q n_q = the budget and 2 <= n_q <= 128;   A = GRPO's over n_q rows

Choices. From the authors' code: p is the mean of a task's newest 16 verdicts, or of all of its last visit; below 8 a
task has the usual number. Tasks with p = 0 or 1 have 2 attempts; what the others are not expected to need to have
both verdicts with probability .9 goes to those with p = 0 or none yet. Two attempts count as worth nothing there, the
third as worth the whole, so that each task has it before one has four: not the optimum of the sum above, which
`rollout.solver: knapsack` finds, with `rollout.window: null`. Its script's token mean and clip_high 0.28 are under
`knapsack_rl@paper`; its clamp of A to 5 in size is left out, which a group of 128 with one success passes. Where a
sequence mean is taken, as by default, tasks with more attempts weigh more: `weight.by_size: group_weight` with
`weight.by_size.curve: equal_groups` gives each group the same weight.
"""

from gxpo.parts.definition import Definition
from gxpo.sampling.rollouts.adaptive_group_size import AdaptiveGroupSize

knapsack_rl = Definition(
    name="knapsack_rl",
    doc=__doc__,
    title="Knapsack RL: Unlocking Exploration of LLMs via Optimizing Budget Allocation",
    arxiv="2509.25849",
    authors="Li, Ziniu and Chen, Congliang and Yang, Tianyun and Ding, Tian and Sun, Ruoyu and Zhang, Ge and "
    "Huang, Wenhao and Luo, Zhi-Quan",
    year=2025,
    evidence="reference-code",
    code="liziniu/KnapsackRL@ca5d5f5b7e933378d916d05d1aeb4ae9de929ee5 verl/trainer/ppo/exploration_utils.py "
    "verl/utils/dataset/rl_dataset.py examples/knapsack_trainer/run_knapsack_grpo_7b.sh",
    keys={
        "rollout": AdaptiveGroupSize,
        "rollout.value": "mixed_gain",
        "rollout.solver": "fallback",
        "rollout.window": 16,
    },
    paper_defaults={"objective.aggregate": "token_mean", "objective.clip_high": 0.28},
    cost="none in samples; two numbers a task in the checkpoint; useful only where tasks repeat",
)
