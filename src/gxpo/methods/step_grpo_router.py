r"""Step-GRPO (R1-Router): single-step GRPO behind an expert's history, with a reward for each kind of step.

rows (question, expert's history up to step t); G samples of the next step;  A = z within (question, t)
r = 0.5 cos(query, the expert's) + 0.5 [the same source alone is called]    on a step that calls a source
r = recall of the expert's answer, 1 or 0 where that is short              on the last step

Choices. As the code, but for the cosine: there of sentence embeddings, here of word counts. A source is the name of
what is called (a tool, a verb of the world), a query its argument; one step of an expert's way is drawn for each task
(`rollout.steps: 0` takes them all), where the paper's data set lists all. Histories are the expert's, so the policy
never acts on what it did itself: no credit goes from step to step, and nothing is off-policy in the loss.
"""

from gxpo.environments.rewards.agreement import Agreement
from gxpo.parts.definition import Definition
from gxpo.sampling.rollouts.expert_prefix import ExpertSteps

step_grpo_router = Definition(
    name="step_grpo_router",
    doc=__doc__,
    title="Learning to Route Queries Across Knowledge Bases for Step-wise Retrieval-Augmented Reasoning",
    arxiv="2505.22095",
    authors="Peng, Chunyi and Xu, Zhipeng and Liu, Zhenghao and Li, Yishan and Yan, Yukun and Wang, Shuo and "
    "Liu, Zhiyuan and Gu, Yu and Yu, Minghe and Yu, Ge and Sun, Maosong",
    year=2025,
    formula="A = z over G samples of step t given the expert's steps before t; r by the kind of step",
    evidence="reference-code",
    keys={"rollout": ExpertSteps, "reward.shape.agreement": Agreement},
    cost="one action a sample, where an episode has many; needs an expert",
    code="OpenBMB/R1-Router@c0a0c1ba3480c0a9832cf85cf6f3e085a31d2b7e Easy-R1/verl/utils/reward_score/step.py",
)
