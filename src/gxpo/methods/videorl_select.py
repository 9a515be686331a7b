r"""Temporal-RLT (mostly ours): data selection: tasks whose repeated answers are neither all wrong nor all right stay.

tasks of epoch 2 and later = those with 0.1 <= p <= 0.9 in what was seen of them, 0.25 being the largest p (1 - p)

Choices. The paper selects before training, by repeated inference; its release (appletea233/Temporal-R1) has no
selection, and its threshold is not known to us. The first epoch of training takes the place of that inference;
`gxpo filter-tasks` does it before, and writes a file. Its temporal IoU reward is user code; no video: a stand-in on
tasks of text.
"""

from gxpo.environments.tasks.task_scores import band
from gxpo.parts.definition import Definition

videorl_select = Definition(
    name="videorl_select",
    doc=__doc__,
    title="Reinforcement Learning Tuning for VideoLLMs: Reward Design and Data Efficiency",
    arxiv="2506.01908",
    authors="Li, Hongyu and Han, Songhao and Liao, Yue and Luo, Junfeng and Gao, Jialin and Yan, Shuicheng and Liu, Si",
    year=2025,
    evidence="reconstruction",
    keys={"tasks.sampler": band, "tasks.sampler.epochs": True, "tasks.sampler.prior": 0.0},
    cost="none in samples; a few numbers a task in the checkpoint; only where tasks repeat",
)
