r"""PVPO: fixed per-prompt baseline: the reference model's mean reward, measured once.

V(q) = (1 / M) sum_j r(o_j), o_j from the reference;   A_i = r_i - V(q), not scaled;   then PPO's clip as in GRPO

Choices. The paper (version 3) measures before training begins; here a task's M reference answers are drawn at its first
visit, which is the same while the reference does not move; V is kept with the checkpoint. M is the base's 8: the paper
has as many as rollouts, 5 or 16. Every 500 of its 1,000 steps it renews the reference; a later version does not, nor
does this. Sampling from the reference takes adapters (`learner.lora_rank`); with `rollout.of: current` the policy of a
task's first visit is measured instead. The data filter (tasks that the reference always solves left out; in groups of
tasks that it never solves a larger model's right answer in the place of one rollout, its ratio over that model) is not
part of this. As the policy gets better than V, advantages drift upwards. Its objective has a KL; the coefficient is not
given.
"""

from gxpo.algorithms.signals.rollout_baseline import rollout_baseline
from gxpo.parts.definition import Definition
from gxpo.sampling.rollouts.baseline import BaselineRollouts

pvpo = Definition(
    name="pvpo",
    doc=__doc__,
    title="PVPO: Pre-Estimated Value-Based Policy Optimization for Agentic Reasoning",
    arxiv="2508.21104",
    authors="Feng, Wenfeng and Zhao, Penghong and Jiang, Guochao and Hao, Chuzhan and Zhang, Yuewei and Liu, Guohua "
    "and Wang, Hao",
    year=2025,
    evidence="paper",
    keys={
        "credit.center": "baseline",
        "credit.scale": "none",
        "rollout": BaselineRollouts,
        "rollout.of": "reference",
        "rollout.baselines": 8,
        "rollout.once": True,
        "signal.rollout_baseline": rollout_baseline,
    },
    paper_defaults={
        "rollout.baselines": 16,
        "rollout.group_size": 16,
        "tasks.per_step": 32,
        "optim.lr": 1e-6,
    },
    cost="M more answers for every task, once; one number a task in the checkpoint; needs learner.lora_rank",
)
