r"""DRIVE: hard-focus curriculum: in phases, the half of the tasks with the lowest success rates is kept.

kept_0 = all;  kept_j = the hardest half of kept_{j-1}, once each of it was drawn j times, j = 1..3;  A as in GRPO

Choices. Read in summaries; there is no code. This is its second stage; the first is `grpo` with 8 attempts on all
tasks, and the second begins from it: `init_from: RUN`. The share and the number of phases are `tasks.sampler.share` and
`tasks.sampler.phases`. Rates are the newest, so a task that has become easy makes room for one that was left out. 64
attempts are under `drive@paper`: tasks that are never solved cost as many and teach nothing.
"""

from gxpo.definition import Definition
from gxpo.tasks.task_scores import keep_hardest

drive = Definition(
    name="drive",
    doc=__doc__,
    title="DRIVE: Data Curation Best Practices for Reinforcement Learning with Verifiable Reward in Competitive Code "
    "Generation",
    arxiv="2511.06307",
    authors="Zhu, Speed and Cai, Jianwei and Chen, Guang and Wu, Lulu and Yang, Saiyong and Zhou, Wiggin",
    year=2025,
    evidence="secondary",
    keys={"tasks.sampler": keep_hardest, "tasks.sampler.epochs": True},
    paper_defaults={"rollout.group_size": 64},
    cost="none in samples; a few numbers a task in the checkpoint; only where tasks repeat",
)
