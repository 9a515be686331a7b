r"""CRAFT-GUI (mostly ours): curriculum by level: the first one not mastered, with a fifth of the draws over all levels.

P(level) = 1/5 / levels + 4/5 [level = l],  l the first whose newest 3 success rates have a mean below 0.7;  A: GRPO's

Choices. From the abstract and a summary: levels are lengths of trajectories, and the mix moves on. The threshold, the 3
visits and the fifth are ours (`tasks.sampler.mastered`, `window`, `uniform`). Levels are a column of the tasks called
"level" (`tasks.sampler.by`), or an option of a source that generates them, with `tasks.sampler.levels`. Of `task:
buttons` with `tasks.options.pool` they are the numbers of actions asked for. Its reward of rules and a judge is the
task's: `scoring.weights`. Stand-in: toy screens, where the level is exact; the paper's are lengths of recorded ways.
"""

from gxpo.environments.tasks.task_scores import first_unmastered
from gxpo.parts.definition import Definition

craft_gui = Definition(
    name="craft_gui",
    doc=__doc__,
    title="CRAFT-GUI: Curriculum-Reinforced Agent For GUI Tasks",
    arxiv="2508.11360",
    authors="Nong, Songqin and Xu, Jingxuan and Zhou, Sheng and Chen, Jianfeng and Tang, Xiaoxuan and Jiang, Tao and "
    "Xu, Wenhao",
    year=2025,
    evidence="reconstruction",
    keys={"tasks.sampler": first_unmastered, "tasks.sampler.by": "level", "tasks.sampler.uniform": 0.2},
    cost="none in samples; a few numbers a level in the checkpoint; only where tasks have levels",
)
