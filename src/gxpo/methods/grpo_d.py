r"""GRPO-D: the KL coefficient follows a schedule: little at first, to explore, more later, to keep what was found.

L = L_GRPO + beta(step) mean k3,   beta a line from 0 to 0.04 over the run

Choices. A reconstruction: the paper's schedule is not in our source. Ends and shape are ours, 0.04 is DeepSeekMath's;
`objective.kl.coef` is where it starts, `objective.kl.control.to` where it ends, `.shape` and `.total_steps` how it
gets there.
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
    formula="L = L_GRPO + beta(step) k3, beta from 0 to 0.04",
    evidence="reconstruction",
    keys={"objective.kl.control": Schedule},
    choices="linear from 0 to 0.04 over the run",
    cost="the reference's log-probs",
)
