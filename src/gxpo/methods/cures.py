r"""CurES: tasks drawn by a softmax of the std of their verdicts, and attempts in proportion to it.

P(q) ~ exp(sqrt(p_q (1 - p_q)) / 0.1),  p_q = (1 + right) / (2 + verdicts);   n_q ~ sqrt(p_q (1 - p_q)), 2 <= n_q

Choices. The temperature is open: 0.1 is the default of the code's `entropy_param`, 1.0 what its scripts pass
(`cures@paper`), and it is never read. Its sampler divides by 100 (right answers + 1) instead, so that what it draws is
all but uniform: rates .1, .5, .9 after 0, 3, 7 right answers have chances .3338, .3332, .3329. Attempts: its sigma for
equal gradient norms (those of answers cost a backward pass each), rounded there one by one, here to the budget, and
anew each step, not once. There p of the attempts is right / verdicts, so that all-wrong tasks have none; here it is the
p above, and 0, 4 and 8 right of 8 have 7, 11 and 6 of 24 attempts (`rollout.prior`; default changed on 2026-11-28,
before it their p was drawn to the mean of all tasks). Tasks of a step differ. Counts are never discounted (`discount:
1` in both places).
"""

from gxpo.environments.tasks.task_scores import std
from gxpo.parts.definition import Definition
from gxpo.sampling.rollouts.adaptive_group_size import AdaptiveGroupSize

cures = Definition(
    name="cures",
    doc=__doc__,
    title="CurES: From Gradient Analysis to Efficient Curriculum Learning for Reasoning LLMs",
    arxiv="2510.01037",
    authors="Zeng, Yongcheng and Sun, Zexu and Ji, Bokai and Min, Erxue and Cai, Hengyi and others",
    year=2025,
    evidence="reference-code",
    code="ZexuSun/CurES@0d65c47addf1fa76fb852f80312c30deb6440cc6 epic/epic_sampler.py "
    "epic/stage_0_init_difficulty_sample_size.py epic/run_loop.sh",
    keys={
        "tasks.sampler": std,
        "tasks.sampler.temperature": 0.1,
        "tasks.sampler.discount": 1.0,
        "rollout": AdaptiveGroupSize,
        "rollout.value": "mean_error",
        "rollout.discount": 1.0,
        "rollout.prior": "uniform",
    },
    paper_defaults={
        "rollout.group_size": 4,
        "tasks.per_step": 1024,
        "tasks.sampler.temperature": 1.0,
        "optim.lr": 1e-6,
        "objective.kl.coef": 1e-3,
    },
    cost="none in samples; a few numbers a task in the checkpoint; only where tasks repeat",
)
