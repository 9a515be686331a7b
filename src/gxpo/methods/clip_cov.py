r"""Clip-Cov: entropy control by masking a few tokens of high covariance between advantage and log-prob.

cov_t = (A_t - mean A)(log pi_t - mean log pi) over the step's tokens;   loss: PPO's clip, token mean, but 0 for
k = max(1, 2e-4 N) tokens drawn among those with 1 < cov < 5 that the clip leaves alone
KL-Cov (`objective.surrogate: covariance_penalty`): -A rho without a clip, + |log rho| for the k tokens of greatest cov

Choices. The clip is the trainer's, 0.2; the authors' Clip-Cov scripts set it to 1 on both sides (`clip_cov@paper`), so
that it cuts for A > 0 at rho > 2 alone. All tokens of an optimiser step are one set (theirs: of a micro-batch), and
dropped ones stay in the denominator. The draw is a hash of the token (place, advantage, old log-prob) and
`objective.draw_seed`: it does not depend on micro-batches or on the order of trajectories, and is the same in every
update of a step; theirs has no generator of its own. KL-Cov's share is 2e-4 in their script for 32B and 2e-3 for 7B
(`objective.covariance_share`).
"""

from gxpo.algorithms.objectives.surrogate_clips import covariance_clip
from gxpo.parts.definition import Definition

clip_cov = Definition(
    name="clip_cov",
    doc=__doc__,
    title="The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models",
    arxiv="2505.22617",
    authors="Cui, Ganqu and Zhang, Yuchen and Chen, Jiacheng and others",
    year=2025,
    formula="L = sum_t [t not drawn] max(-A rho, -A clip(rho)) / tokens, max(1, 2e-4 N) of those of 1 < cov < 5",
    evidence="reference-code",
    code="PRIME-RL/Entropy-Mechanism-of-RL@88505792fd97 verl/trainer/ppo/core_algos.py recipe/dapo/7b_clip_cov.sh "
    "recipe/dapo/7b_kl_cov.sh",
    keys={
        "objective.surrogate": covariance_clip,
        "objective.aggregate": "token_mean",
    },
    paper_defaults={"objective.clip_low": 1.0, "objective.clip_high": 1.0},
)
