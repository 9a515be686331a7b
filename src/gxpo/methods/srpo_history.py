r"""SRPO (history resampling): each epoch leaves out the tasks whose answers were all right in the last; DAPO's loss.

tasks of epoch e + 1 = those of epoch e without the ones whose group was all right: mixed and all-wrong groups stay
L = sum_{i,t} max(-A rho, -A clip(rho, 0.8, 1.28)) / number of tokens of the batch; A as in GRPO

Choices. From the model card and translations; no code was found. No group is drawn in another's place, unlike dynamic
sampling: the share of groups with signal rises an epoch late. A dropped task does not return (`tasks.sampler.after`
all-right visits drop it, 1). Its two stages are two runs: mathematics, then `init_from` it with code added.
"""

from gxpo.environments.tasks.task_scores import drop_solved
from gxpo.parts.definition import Definition

srpo_history = Definition(
    name="srpo_history",
    doc=__doc__,
    title="SRPO: A Cross-Domain Implementation of Large-Scale Reinforcement Learning on LLM",
    arxiv="2504.14286",
    authors="Zhang, Xiaojiang and Wang, Jinghui and Cheng, Zifei and Zhuang, Wenhao and Lin, Zheng and others",
    year=2025,
    formula="tasks of the next epoch: those not all right in this one; L = sum clip loss / tokens",
    evidence="secondary",
    keys={
        "tasks.sampler": drop_solved,
        "tasks.sampler.epochs": True,
        "objective.clip_high": 0.28,
        "objective.aggregate": "token_mean",
    },
    paper_defaults={"tasks.per_step": 256, "rollout.group_size": 32, "optim.lr": 1e-6, "optim.betas": [0.9, 0.95]},
    cost="none in samples; a few numbers a task in the checkpoint; only where tasks repeat",
)
