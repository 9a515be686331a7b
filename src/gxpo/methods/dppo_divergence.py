r"""DPPO (divergence): trust-region mask by the change of token probability (TV or binary KL), not by ratio.

out: A > 0 and p - q > 0.2, or A < 0 and p - q < -0.2;   l = -stop(min(rho, 20)) A log pi, token mean
p and q: the token's probability under the policy and under the behaviour policy.

A ratio of 3 from 0.01 to 0.03 is nothing, one of 1.3 from 0.7 to 0.9 is much: PPO's clip has it the other way round.
`{"objective.divergence": "kl"}` measures by the KL divergence of "this token or another".
Choices. As in the authors' code, over the behaviour policy (`objective.ratio_over: proximal` is their `_recompute`),
with bounds of 0.2, which are the trainer's clip widths there; their script in verl (examples/dppo_trainer) has 0.15,
and 0.05 for `kl` (`objective.divergence_low`, `divergence_high`). Their sources disagree on the ratio's bound: 3 in
their repository's configuration, 1e4 in the script; here 20 (`objective.ratio_max`). The script is Dr. GRPO otherwise
(all of it `dppo_divergence@paper`). A divergence over the top k tokens needs distributions that are not kept. A trainer
that adds 1e-3 times the squared log-ratio on every token is not followed in that. The name also belongs to diffusion
policies.
"""

from gxpo.algorithms.objectives.surrogate_weights import divergence_mask
from gxpo.parts.definition import Definition

dppo_divergence = Definition(
    name="dppo_divergence",
    doc=__doc__,
    title="Rethinking the Trust Region in LLM Reinforcement Learning",
    arxiv="2602.04879",
    authors="Qi, Penghui and Zhou, Xiangxin and Liu, Zichen and Pang, Tianyu and Du, Chao and Lin, Min and Lee, "
    "Wee Sun",
    year=2026,
    formula="l = -[|p - q| <= 0.2 or moving back] stop(min(rho, 20)) A log pi",
    evidence="reference-code",
    code="sail-sg/Stable-RL@c6af1d119c0f verl/trainer/ppo/core_algos.py verl/workers/config/actor.py",
    keys={
        "objective.surrogate": divergence_mask,
        "objective.ratio_over": "behaviour",
        "objective.aggregate": "token_mean",
    },
    paper_defaults={
        "rollout.group_size": 16,
        "optim.lr": 1e-6,
        "credit.scale": "none",
        "objective.aggregate": "sequence_sum",
        "objective.ratio_max": 1e4,
        "objective.divergence_low": 0.15,
        "objective.divergence_high": 0.15,
    },
)
