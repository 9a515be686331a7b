r"""CPPO: completion pruning: train only on the completions of largest |A| in each group.

of each group the k = G (1 - P) completions of largest |A| are trained, the advantages worked out before

Choices. k of each group, as in the paper; its code for verl takes the top of the whole batch
(`weight.largest_credit.scope: batch`), where groups of no advantage vanish first. Of equal ones the earlier are kept. P
is 0.5. They weigh G / k, so the mean is over the kept ones. The paper fills the freed room with more questions: set
`tasks.per_step` 1 / (1 - P) times as high.
"""

from gxpo.algorithms.weighting.token_weight import TokenWeight
from gxpo.parts.definition import Definition

cppo = Definition(
    name="cppo",
    doc=__doc__,
    title="CPPO: Accelerating the Training of Group Relative Policy Optimization-Based Reasoning Models",
    arxiv="2503.22342",
    authors="Lin, Zhihang and Lin, Mingbao and Xie, Yuan and Ji, Rongrong",
    year=2025,
    formula="mask all but the G (1 - P) largest |A| of each group",
    evidence="reference-code",
    keys={
        "weight.largest_credit": TokenWeight,
        "weight.largest_credit.by": "mean_credit",
        "weight.largest_credit.keep": "largest_size",
        "weight.largest_credit.unit": "trajectory",
        "weight.largest_credit.scope": "group",
    },
    paper_defaults={"rollout.group_size": 16, "update.epochs": 2},
    cost="less than the base: pruned completions need no forward pass with gradient",
    code="lzhxmu/CPPO@52faeb37e2ef629da1da3ff1e7d0c9be578c4bdc src/open_r1/grpo_trainer_gsm.py "
    "cppo_verl/recipe/cppo/src/cppo_ray_trainer.py",
)
