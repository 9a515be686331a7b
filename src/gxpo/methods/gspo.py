r"""GSPO: sequence-level, length-normalised importance ratio with a sequence-level clip.

s_i = exp(mean_t log rho_{i,t});   l_i = max(-A_i s_i, -A_i clip(s_i, 1 - 3e-4, 1 + 4e-4));   L = mean_i l_i

Choices. Eq. 5 to 7 of the paper, whose code is not public, in its GSPO-token form (eq. 13 and 14), s_{i,t} = stop(s_i)
rho_{i,t} / stop(rho_{i,t}): value and gradient are GSPO's where the advantage is constant over a trajectory, and
turn-level advantages (`gigpo+gspo`) are allowed. The clip is three orders tighter than PPO's. With token_mean it would
no longer be GSPO: refused.
"""

from gxpo.parts.definition import Definition

gspo = Definition(
    name="gspo",
    doc=__doc__,
    title="Group Sequence Policy Optimization",
    arxiv="2507.18071",
    authors="Zheng, Chujie and Liu, Shixuan and Li, Mingze and others",
    year=2025,
    evidence="paper",
    keys={"objective.ratio": "sequence", "objective.clip_low": 3e-4, "objective.clip_high": 4e-4},
    paper_defaults={"update.minibatches": 4},
    refuses={"objective.aggregate": ("token_mean",)},
)
