r"""GMPO: geometric mean of token importance ratios, clipped on one side in log space.

log rho'_t = min(log rho_t, 0.4) for A >= 0, max(log rho_t, -0.4) for A < 0
L = mean_i -A_i exp(mean_t log rho'_t)

Choices. 0.4 is in log space: (e^-0.4, e^0.4). Sequences without trainable tokens are not counted (verl counts
them). Unclipped it equals unclipped GSPO.
"""

from gxpo.algorithms.objectives import LogClip
from gxpo.parts.definition import Definition

gmpo = Definition(
    name="gmpo",
    doc=__doc__,
    title="Geometric-Mean Policy Optimization",
    arxiv="2507.20673",
    authors="Zhao, Yuzhong and Liu, Yue and Liu, Junpeng and others",
    year=2025,
    formula="L = mean_i -A exp(mean_t hold(log rho, 0.4 either way))",
    evidence="reference-code",
    keys={"objective.ratio": "sequence", "objective.surrogate": LogClip},
    refuses={"objective.aggregate": ("token_mean",)},
    code="callsys/GMPO@205b2bf412f150cf96c29b33273b81bcd1a9b20f train_zero_math_gmpo.py "
    "scripts/qwen2.5-math-7b-gmpo.sh",
)
