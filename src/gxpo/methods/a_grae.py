r"""A-GRAE: advantages reweighted by prompt difficulty (easy first, hard later); positive ones damped early.

A' = A ((1 - M) / (2 (1 - sqrt(p))) + M / (2 sqrt(p))), times min(1, M) where A > 0
p the group's success rate, M the mean of p over the step's groups

Choices. The easy term is as the code has it; sqrt(1 - p) would be the mirror of sqrt(p) (`weight.difficulty_mix.easy:
root_of_rest`), and at p = 0.75 the difference is 3.7 times. The branch is guarded in the code by a setting that its
scripts never reach: as run there, it is GRPO. M is over groups with verdicts and counts in full from 1 on (0.5 for
geometry and medicine: `weight.difficulty_mix.full`). Groups all right or all wrong have weight 1 and advantage 0.
"""

from gxpo.algorithms.weighting.group_weight import GroupWeight
from gxpo.parts.definition import Definition

a_grae = Definition(
    name="a_grae",
    doc=__doc__,
    title="Unveiling Implicit Advantage Symmetry: Why GRPO Struggles with Exploration and Difficulty Adaptation",
    arxiv="2602.05548",
    authors="Yu, Zhiqi and Chen, Zhangquan and Liu, Mengting and Zhang, Heye and Qu, Liangqiong",
    year=2026,
    formula="A' = A ((1 - M) / (2 (1 - sqrt p)) + M / (2 sqrt p)) (min(1, M) if A > 0)",
    evidence="reference-code",
    keys={"weight.difficulty_mix": GroupWeight, "weight.difficulty_mix.curve": "difficulty_mix"},
    paper_defaults={"rollout.group_size": 8, "optim.lr": 1e-6},
    code="Yu7-code/A-GRAE@5f129eff8e6a802ea295ae7386a154658c090dce verl/trainer/ppo/core_algos.py "
    "verl/trainer/ppo/ray_trainer.py",
)
