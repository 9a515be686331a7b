r"""Lite PPO: group-mean baseline, batch std and token mean; no critic, no KL.

A_i = (r_i - mean_g r) / (std_batch r + 1e-6);   L = sum_{i,t} max(-A rho, -A clip(rho, 1 +- 0.2)) / tokens

Choices. The std is of the raw rewards of all compared trajectories of the step, one degree of freedom, eps 1e-6, as in
ROLL, whose authors the paper's are (`norm_mean_type: group`, `norm_std_type: batch`); REINFORCE++-baseline takes the
std after the group's mean is subtracted. No critic, no KL, no filter. ROLL's page for it pairs these with GAE,
whitening and a dual clip at 1.4, against the paper's recipe.
"""

from gxpo.parts.definition import Definition

lite_ppo = Definition(
    name="lite_ppo",
    doc=__doc__,
    title="Part I: Tricks or Traps? A Deep Dive into RL for LLM Reasoning",
    arxiv="2508.08221",
    authors="Liu, Zihe and Liu, Jiashun and He, Yancheng and others",
    year=2025,
    evidence="reference-code",
    code="alibaba/ROLL@8eb27cc2dc34 roll/utils/functionals.py roll/pipeline/rlvr/actor_worker.py",
    keys={"credit.scale": "batch_std", "objective.aggregate": "token_mean"},
    paper_defaults={"rollout.group_size": 8, "sampling.temperature": 0.99},
)
