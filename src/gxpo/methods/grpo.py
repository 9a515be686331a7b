r"""GRPO: group-normalised advantages, PPO clip, sequence mean; the base of all other methods.

A_i = (r_i - mean_g r) / (std_g r + 1e-6), one degree of freedom; the same for every token of the trajectory.
L   = mean_i mean_t max(-A rho, -A clip(rho, 0.8, 1.2)) + coef * k3(policy || reference), coef 0 here.

Choices. The paper (DeepSeekMath, arXiv 2402.03300, eq. 3 and 4; its code is not public) states neither ddof nor eps nor
the clip; ddof 1 and 1e-6 are verl's, 0.2 is PPO's. The paper's KL coefficient is 0.04: `grpo@paper`. Its reference
becomes the policy at every outer iteration; here it stays. Group of one: advantage 0 (verl keeps the raw reward).
"""

from gxpo.parts.definition import Definition

grpo = Definition(
    name="grpo",
    doc=__doc__,
    title="DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models",
    arxiv="2402.03300",
    authors="Shao, Zhihong and Wang, Peiyi and Zhu, Qihao and others",
    year=2024,
    formula="A = (r - mean_g) / (std_g + eps); L = mean_i mean_t max(-A rho, -A clip(rho, 1 - 0.2, 1 + 0.2))",
    evidence="paper",
    paper_defaults={"objective.kl.coef": 0.04, "rollout.group_size": 64, "optim.lr": 1e-6},
)
