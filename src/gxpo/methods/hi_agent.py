r"""Hi-Agent (mostly ours): hierarchical planner and executor, both trained by single-step GRPO at an expert's states.

high  G sub-goals g_i at a state, an action a_i ~ pi_low(s, g_i) under each:
      r_i = l1 format_i + l2 [a_i led where the expert's action leads] + l3 r_env;  A_i = z over the G, on g_i only
low   N actions under one sub-goal of that state: r = l1 format + l2 [as above];  A = z over the N, on the actions only

Choices. From the abstract, public reviews and general knowledge: no code was read. States are an expert's, as there.
l = 0.1, 1, 1, G = N = 8 and the low group under the first sub-goal are ours, and so is that both levels learn in every
step. Reviewers call it two independent GRPOs of single steps, which is what it is: no credit goes from step to step.
The paper trains two models: `rollout.policy: per_role` gives each role an adapter of its own.
"""

from gxpo.environments.rewards.shape import Shape
from gxpo.parts.definition import Definition
from gxpo.sampling.rollouts.subgoal_steps import SubgoalSteps

hi_agent = Definition(
    name="hi_agent",
    doc=__doc__,
    title="Hi-Agent: Hierarchical Vision-Language Agents for Mobile Device Control",
    arxiv="2510.14388",
    authors="Wu, Zhe and Lu, Hongjin and Xing, Junliang and Zhang, Changhao and Yang, Yuhao and Jing, Yuheng and "
    "Li, Kai and Shao, Kun and Hao, Jianye and Wang, Jun and Shi, Yuanchun",
    year=2025,
    formula="r = l1 format + l2 executed as the expert + l3 env; A = z over G sub-goals of a state, and over N actions",
    evidence="reconstruction",
    keys={"rollout": SubgoalSteps, "reward.shape.noted": Shape, "reward.shape.noted.function": "noted"},
    cost="two short samples for each of G sub-goals and one for each of N actions; needs an expert",
)
