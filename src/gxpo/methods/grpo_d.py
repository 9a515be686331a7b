r"""GRPO-D: the KL coefficient follows a schedule: little at first, to explore, more later, to keep what was found.

L = L_GRPO + beta(s) mean k3;   w = 0.3 t of the run's t steps, b and B the least and the most, 0 and 0.02
beta(s) = m - (m - b) s / w, m = (b + B) / 2, until s = w;   b + (B - b) (s - w) / (t - w) from then on

Choices. The paper's text has beta rise from a small value; its eq. 3, which is followed, begins in the middle, falls to
b and rises to B (`objective.kl.control.shape: linear` rises throughout). b = 0 and B = 0.02 are those of its geometry
task, 0.04 and 0.1 those of counting. `objective.kl.coef` is b, `objective.kl.control.to` B, `.turn` w / t.
"""

from gxpo.keys import Definition
from gxpo.objectives.control import Schedule

grpo_d = Definition(
    name="grpo_d",
    title="OThink-MR1: Stimulating multimodal generalized reasoning capabilities via dynamic reinforcement learning",
    arxiv="2503.16081",
    authors="Liu, Zhiyuan and Zhang, Yuting and Liu, Feng and Zhang, Changwang and Sun, Ying and Wang, Jun",
    year=2025,
    idea="explore under a loose KL early, exploit under a tight one late",
    formula="L = L_GRPO + beta(step) k3, beta from 0.01 to 0 in the first 0.3 of the run, then to 0.02",
    evidence="paper",
    keys={
        "objective.kl.control": Schedule,
        "objective.kl.control.shape": "dip",
        "objective.kl.control.to": 0.02,
    },
    choices="eq. 3 (middle, least, most), not the text (rising throughout); the geometry task's ends 0 and 0.02",
    cost="the reference's log-probs",
)
