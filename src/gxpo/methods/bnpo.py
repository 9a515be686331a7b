r"""BNPO: advantages normalised by a Beta density fitted to the success rates of the step.

A = (r - p) / f(p; alpha, beta), p = mean_g r;   alpha = max(1, 1 + a / 3), beta = max(1, 1 + b / 3)
a = k m, b = k (1 - m), k = m (1 - m) / v - 1;   m, v mean and variance (ddof 1) of p over the step's groups
Beta(1, 1) is REINFORCE with a baseline, Beta(3/2, 3/2) GRPO's scale up to pi / 8.

Choices. p by verdicts, where the code maps rewards to [0, 1]: the same for binary ones. A group of fewer than two is
not in m and v (code: it is, with p = 0). Equal p everywhere: weight 1 (code: 0 / 0). p of 0 or 1: weight 1, advantage 0
(code: up to 1e6). One Beta for each of several rewards, off in the code by default, is not built. TRL's `loss_type`
"bnpo" is a token mean and has nothing to do with this.
"""

from gxpo.algorithms.objectives.surrogate import DualClip
from gxpo.algorithms.weighting.group_weight import GroupWeight
from gxpo.parts.definition import Definition

bnpo = Definition(
    name="bnpo",
    doc=__doc__,
    title="BNPO: Beta Normalization Policy Optimization",
    arxiv="2506.02864",
    authors="Xiao, Changyi and Zhang, Mengdi and Cao, Yixin",
    year=2025,
    formula="A = (r - p) / BetaPDF(p; alpha, beta), alpha and beta by moments of p over the step's groups",
    evidence="reference-code",
    keys={"credit.scale": "none", "weight.beta_density": GroupWeight, "weight.beta_density.curve": "beta_density"},
    paper_defaults={
        "objective.surrogate": DualClip,
        "objective.ratio_max": 10.0,
        "objective.clip_high": 0.28,
        "objective.aggregate": "sequence_sum",
        "rollout.group_size": 16,
        "tasks.per_step": 32,
        "optim.lr": 1e-6,
    },
    code="changyi7231/BNPO@a9c51b9848283286ff3c51afbba2a867977a2e36 recipe/bnpo/src/bnpo_ray_trainer.py "
    "recipe/bnpo/run.sh",
)
