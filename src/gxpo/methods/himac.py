r"""HiMAC: alternate GRPO over plans (macro, greedy execution) and over executions of the best plan (micro).

macro  A_m = (R(z_m) - mean) / (std + eps) over M plans of a task, on plan tokens only
micro  A_n = (R_n - mean) / (std + eps) over N executions of z* = argmax R(z_m), on execution tokens only
The phases alternate, a step each; both are GRPO's objective.

Choices. From secondary notes; there is no code. M = N = 8: the group sizes are not known. The micro phase makes and
tries out plans of its own. In an environment a plan is written before the episode, a list of sub-goals; the executor
acts under one at a time, turn by turn in a context of its own, and says <sub_done> to go on to the next. It may
accompany an action; alone it takes no turn of the environment. Trials are greedy, as there; a small policy that
remembers nothing then goes in circles: `rollout.trial: 1.0` tries plans out as the run samples. On tasks of prompts a
plan is the first stretch of the answer, up to a delimiter, and the execution goes on from it, unless the templates ask
for a plan in words. The KL coefficient, 0.01 in both phases: `himac@paper`. With a random z* the paper loses about 2
points.
"""

from gxpo.parts.definition import Definition
from gxpo.sampling.rollouts.plan_execute import PlanExecute

himac = Definition(
    name="himac",
    doc=__doc__,
    title="HiMAC: Hierarchical Macro-Micro Learning for Long-Horizon LLM Agents",
    arxiv="2603.00977",
    authors="Jin, Hongbo and Zhu, Rongpeng and Ding, Jiayu and Zhang, Wenhao and Li, Ge",
    year=2026,
    formula="macro: A = z over plans of greedy outcomes, on plan tokens; micro: A = z over executions of the best plan",
    evidence="secondary",
    keys={"rollout": PlanExecute},
    paper_defaults={"objective.kl.coef": 0.01},
    cost="a greedy execution of every plan; in the micro phase these and all plans but one are discarded",
)
