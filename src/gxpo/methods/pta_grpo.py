r"""PTA-GRPO: plan-then-act rollouts: several executions of each plan, plus a reward for the plan's success rate.

n plans z of a task, m executions of each: r_plan(z) = mean_j correct(z, j)
r_zj = r_out(z, j) + l r_plan(z);   A_zj = (r_zj - mean) / (std + eps) over all n m attempts, on plan and execution

Choices. From public reviews, which have the three rewards and n = m = 3; l = 0.5 is ours, no code was found. A format
reward is the task's (`reward`), and the paper's term for length is left out. The first stage, which fine-tunes on plans
distilled from a larger model, is a warm start and not built. The m executions of a plan share its tokens, which are
trained with the sum of their credits. On prompts a plan is the first stretch of the answer, unless the templates ask
for it in words; in an environment it is the sub-goals that an executor acts under.
"""

from gxpo.definition import Definition
from gxpo.rewards.shape import Shape
from gxpo.rollouts.plan_execute import Planned

pta_grpo = Definition(
    name="pta_grpo",
    doc=__doc__,
    title="Plan Then Action: High-Level Planning Guidance Reinforcement Learning for LLM Reasoning",
    arxiv="2510.01833",
    authors="Dou, Zhihao and Zhao, Qinjian and Wan, Zhongwei and others",
    year=2025,
    formula="r = r_out + l mean_j correct(z, j); A = (r - mean_g) / std_g over all plans and executions of the task",
    evidence="secondary",
    keys={
        "rollout": Planned,
        "rollout.plans": 3,
        "rollout.executions": 3,
        "reward.add.plan_success": Shape,
        "reward.add.plan_success.function": "plan_success",
    },
    cost="none beyond the base's attempts: a plan is sampled once for its executions",
)
