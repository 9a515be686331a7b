r"""DRIVE: hard-focus curriculum: in phases, the tasks with the lowest success rates of the phase before are kept.

kept_0 = all;  kept_j = the hardest share s_j of kept_{j-1}, once each of it was drawn j times;  A as in GRPO
s = 72 / 175, 50 / 72, 25 / 50

Choices. From the paper (arXiv 2511.06307v1, section 3.2); there is no code. This is its second stage, in which 175
tasks become 72, 50 and 25, for 64, 32 and 32 steps; here a phase ends by draws, since a step has as many tasks as
`tasks.per_step` says. The first stage is `grpo` with 8 attempts on all tasks, and the second begins from it:
`init_from: RUN`. Shares are `tasks.sampler.shares`. Rates are the newest, so a task that has become easy makes room for
one that was left out. 64 attempts are under `drive@paper` (the paper says 80 in one place): tasks that are never solved
cost as many and teach nothing.
"""

from gxpo.environments.tasks.task_scores import keep_hardest
from gxpo.parts.definition import Definition

drive = Definition(
    name="drive",
    doc=__doc__,
    title="DRIVE: Data Curation Best Practices for Reinforcement Learning with Verifiable Reward in Competitive Code "
    "Generation",
    arxiv="2511.06307",
    authors="Zhu, Speed and Cai, Jianwei and Chen, Guang and Wu, Lulu and Yang, Saiyong and Zhou, Wiggin",
    year=2025,
    evidence="paper",
    keys={
        "tasks.sampler": keep_hardest,
        "tasks.sampler.epochs": True,
        "tasks.sampler.shares": (72 / 175, 50 / 72, 25 / 50),
    },
    paper_defaults={"rollout.group_size": 64},
    cost="none in samples; a few numbers a task in the checkpoint; only where tasks repeat",
)
