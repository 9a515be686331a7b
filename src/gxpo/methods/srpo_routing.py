r"""SRPO: sample routing: GRPO on correct rollouts, self-distillation (SDPO) on wrong ones.

L = (1 / N) [sum over tokens of routed-to-GRPO rollouts of max(-A rho, -A clip(rho)) +
             sum over tokens of the others of v_t min(rho_t, 2) D_t],   N = all trainable tokens of the step
v = exp(-beta H_t) / mean exp(-beta H), H the teacher's entropy;   D and the teacher as in SDPO (`sdpo_self`)
Wrong rollouts whose group has no right one have no teacher, and stay with GRPO; there their advantage is 0 anyway.

Choices. From the paper (arXiv 2604.02288v1, section 3 and tables 3 and 7). Advantages are over the whole group, before
the routing; its equation divides them by the std, its experiments do not (`credit.scale: none`, under
`srpo_routing@paper`). beta is 1. The mean of v is over the distilled tokens of the optimiser step. It distils over the
teacher's 100 likeliest tokens; buckets, and the place of the right answer in the prompt, are as in `sdpo_self`. Three
other methods have the same name (`srpo_history`).
"""

from gxpo.algorithms.objectives.distillation import Distillation
from gxpo.algorithms.signals.self_teacher import SelfTeacher
from gxpo.algorithms.weighting.token_weight import TokenWeight
from gxpo.parts.definition import Definition

srpo_routing = Definition(
    name="srpo_routing",
    doc=__doc__,
    title="Unifying Group-Relative and Self-Distillation Policy Optimization via Sample Routing",
    arxiv="2604.02288",
    authors="Li, Gengsheng and Yang, Tianyu and Fang, Junfeng and Song, Mingyang and Zheng, Mao and Guo, Haiyun and "
    "Zhang, Dan and Wang, Jinqiao and Chua, Tat-Seng",
    year=2026,
    formula="L = (sum_right clip(A rho) + sum_wrong [exp(-H_t) / mean] min(rho_t, 2) JSD_t) / all tokens",
    evidence="paper",
    keys={
        "objective.aggregate": "token_mean",
        "objective.add.distillation": Distillation,
        "objective.add.distillation.over": "all",
        "objective.add.distillation.beta": 1.0,
        "weight.untaught": TokenWeight,
        "weight.untaught.by": "taught",
        "weight.untaught.keep": "between",
        "weight.untaught.high": 0.0,
        "signal.self_teacher": SelfTeacher,
        "signal.self_teacher.of": "failed",
    },
    paper_defaults={
        "credit.scale": "none",
        "objective.clip_high": 0.28,
        "rollout.group_size": 8,
        "tasks.per_step": 32,
        "optim.lr": 5e-6,
    },
    refuses={"objective.aggregate": ("sequence_mean", "sequence_sum")},
    cost="a second model; a forward pass of it over the wrong rollouts that have a right peer",
)
