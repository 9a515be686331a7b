r"""MC-GRPO: median-centred advantages for small groups, scaled by the median absolute deviation.

m = median of the group of G + 1;   d = median |r - m|;   A_i = (r_i - m) / (d + 1e-3)
The median rollout itself has advantage 0 and is left out of the loss: G are trained.

Choices. Of an even group the lower median, as the code takes it. With rewards 0 and 1 most rollouts agree, so d is 0
and the minority has A = +-1000 (the code's numbers); the clip on the gradient's norm is what keeps such a step in
bounds: with `credit.eps: 1.0` it is +-1. The rollout is dropped by weight 0, and the others' weight n / (n - 1) makes
up for its place in the mean over trajectories; a KL term would still see it. One of the two released trainers also
scales by n / (number of advantages other than 0); not here.
"""

from gxpo.algorithms.weighting.token_weight import TokenWeight
from gxpo.parts.definition import Definition

mc_grpo = Definition(
    name="mc_grpo",
    doc=__doc__,
    title="MC-GRPO: Median-Centered Group Relative Policy Optimization for Small-Rollout Reinforcement Learning",
    arxiv="2601.22582",
    authors="Kim, Youngeun",
    year=2026,
    formula="A = (r - median) / (median |r - median| + 1e-3); the median rollout is not trained",
    evidence="reference-code",
    keys={
        "credit.center": "lower_median",
        "credit.scale": "median_absolute",
        "credit.eps": 1e-3,
        "weight.drop_median": TokenWeight,
        "weight.drop_median.by": "outcome",
        "weight.drop_median.keep": "drop_median",
        "weight.drop_median.unit": "trajectory",
        "weight.drop_median.scope": "group",
    },
    paper_defaults={
        "rollout.group_size": 9,
        "objective.kl.coef": 0.04,
        "update.epochs": 2,
        "optim.lr": 2e-6,
    },
    cost="one rollout more a task",
    code="lotusroot-kim/MC-GRPO@da077455d4cb53c715e194c5334abc63d2fd41f2 src/open_r1/grpo_trainer_math.py "
    "src/open_r1/grpo_trainer_gsm.py",
)
