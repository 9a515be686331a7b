r"""GRPO-D: KL coefficient schedule: low early to explore, high late to exploit.

L = L_GRPO + beta(s) mean k3;   w = 0.3 t of the run's t steps, b and B the least and the most, 0 and 0.02
beta(s) = m - (m - b) s / w, m = (b + B) / 2, until s = w;   b + (B - b) (s - w) / (t - w) from then on

Choices. The paper's text has beta rise from a small value; its eq. 3, which is followed, begins in the middle, falls to
b and rises to B (`objective.kl.control.shape: linear` rises throughout). b = 0 and B = 0.02 are those of its geometry
task, 0.04 and 0.1 those of counting. `objective.kl.coef` is b, `objective.kl.control.to` B, `.turn` w / t.
"""

from gxpo.algorithms.objectives.control import schedule
from gxpo.parts.definition import Definition

grpo_d = Definition(
    name="grpo_d",
    doc=__doc__,
    title="OThink-MR1: Stimulating multimodal generalized reasoning capabilities via dynamic reinforcement learning",
    arxiv="2503.16081",
    authors="Liu, Zhiyuan and Zhang, Yuting and Liu, Feng and Zhang, Changwang and Sun, Ying and Wang, Jun",
    year=2025,
    formula="L = L_GRPO + beta(step) k3, beta from 0.01 to 0 in the first 0.3 of the run, then to 0.02",
    evidence="paper",
    keys={
        "objective.kl.control": schedule,
        "objective.kl.control.shape": "dip",
        "objective.kl.control.to": 0.02,
    },
    cost="the reference's log-probs",
)
