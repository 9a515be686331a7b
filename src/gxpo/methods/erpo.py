r"""ERPO (mostly ours): tasks that came out all right are sampled hotter next time, and a virtual failure joins them.

T_q = min(T_0 + c_q 0.05, 1.2), c_q the visits in a row at which all of q's group was right
all right: A = (r - mean+) / (std+ + eps), mean+ and std+ over r_1 ... r_G and a virtual 0; else A as in GRPO

Choices. Only the abstract and summaries were read; the repository that it names could not be had. It says that history
and temperature go by prompt, and that ERPO builds on a plain reactivation of such groups, RA; the virtual 0 is our
reading of RA, G = 4 all right have A = 0.447213. Step 0.05, most 1.2 and the reset of c_q (`rollout.reset`) are ours.
A row is read and trained at the temperature that it was sampled at: at T = 1 its ratio would not begin at 1. With the
virtual failure every all-right group pushes up all that it said; `credit.groups: all` and other `credit.value` see
`ngrpo`. All-wrong tasks are not heated; `rollout.when: all_wrong` does that.
"""

from gxpo.algorithms.credit.baselines import pseudo_rollouts
from gxpo.parts.definition import Definition
from gxpo.sampling.rollouts.task_temperature import TaskTemperature

erpo = Definition(
    name="erpo",
    doc=__doc__,
    title="Explore Data Left Behind in Reinforcement Learning for Reasoning Language Models",
    arxiv="2511.04800",
    authors="Liu, Chenxi and Liang, Junjie and Jia, Yuqi and Cao, Bochuan and Bai, Yang and Huang, Heng and Chen, Xun",
    year=2025,
    formula="T_q = min(T_0 + c_q dT, T_max), c_q visits all right in a row; all right: A over group and a virtual 0",
    evidence="reconstruction",
    keys={
        "rollout": TaskTemperature,
        "credit": pseudo_rollouts,
        "credit.value": 0.0,
        "credit.groups": "all_right",
    },
    cost="a number for each task; pays only where tasks come round again",
)
