r"""Clip-Cov: a few of the tokens whose credit and log-prob go together, which cost the policy its entropy, are not
trained.

cov_t = (A_t - mean A)(log pi_t - mean log pi) over the step's tokens;   loss: PPO's clip, token mean, but 0 for
k = max(1, 2e-4 N) tokens drawn among those with 1 < cov < 5 that the clip leaves alone
KL-Cov (`objective.gate: covariance_penalty`): -A rho without a clip, + |log rho| for the k tokens of greatest cov

Choices. All tokens of an optimiser step are one set (verl: of a micro-batch), and dropped ones stay in the denominator.
The draw is a hash of the entry (place, credit, old log-prob) and `objective.draw_seed`: it does not depend on
micro-batches or on the order of trajectories, and is the same in every update of a step. verl has no generator of its
own for it. The share is verl's; the paper has 2e-3 for KL-Cov on 7B.
"""

from gxpo.keys import Definition
from gxpo.objectives.gate_covariance import CovarianceClip

clip_cov = Definition(
    name="clip_cov",
    title="The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models",
    arxiv="2505.22617",
    authors="Cui, Ganqu and Zhang, Yuchen and Chen, Jiacheng and others",
    year=2025,
    idea="entropy falls by the covariance of credit and log-prob: hold back the tokens in which it is greatest",
    formula="L = sum_t [t not drawn] max(-A rho, -A clip(rho)) / tokens, max(1, 2e-4 N) of those with 1 < cov < 5",
    evidence="secondary",
    keys={"objective.gate": CovarianceClip, "objective.aggregate": "token_mean"},
    choices="the step is the set; a keyed draw; KL-Cov as the other gate",
)
