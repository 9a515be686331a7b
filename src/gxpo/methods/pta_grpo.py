r"""PTA-GRPO: plan-then-act rollouts: several executions of each plan, plus a reward for the plan's success rate.

4 plans of a task, 3 executions of each:  s_i = mean_j correct(i, j),  r_plan(i) = softmax(s / tau)_i,  tau 1
r_ij = r_out(i, j) + 0.5 r_plan(i);   A_ij = (r_ij - mean) / std over all 12 attempts, population std, on plan and
execution

Choices. From the paper (ICML 2026, eq. 2 to 4, 9, 10, appendices A.1 and A.10); there is no code. It does not state
tau: 1 is ours (`reward.add.plan_success.temperature`; `reward.add.plan_success.function: plan_success` pays the mean
s itself). Left out: 0.2 for a response that follows the template, which is the task's (`reward`), and the term for
length, alpha exp(-| |o| - T | / (T_max - T)) with T the shortest right response, whose alpha it does not state. The
first stage, which fine-tunes on plans distilled from a larger model, is a warm start and not built. The executions of
a plan share its tokens, which are trained with the sum of their credits; there each pair is a response by itself,
which is the same. On prompts a plan is the first stretch of the answer, unless the templates ask for it in words; in
an environment it is the sub-goals that an executor acts under.
"""

from gxpo.environments.rewards.shape import Shape
from gxpo.parts.definition import Definition
from gxpo.sampling.rollouts.plan_execute import Planned

pta_grpo = Definition(
    name="pta_grpo",
    doc=__doc__,
    title="Plan Then Action: High-Level Planning Guidance Reinforcement Learning for LLM Reasoning",
    arxiv="2510.01833",
    authors="Dou, Zhihao and Zhao, Qinjian and Wan, Zhongwei and others",
    year=2025,
    formula="r = r_out + 0.5 softmax over plans of mean_j correct(i, j); A = (r - mean_g) / std_g over all of the task",
    evidence="paper",
    keys={
        "rollout": Planned,
        "rollout.plans": 4,
        "rollout.executions": 3,
        "reward.add.plan_success": Shape,
        "reward.add.plan_success.function": "plan_softmax",
        "credit.ddof": 0,
    },
    cost="none beyond the base's attempts: a plan is sampled once for its executions",
)
