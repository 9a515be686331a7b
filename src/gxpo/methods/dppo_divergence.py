r"""DPPO (divergence): tokens are let go by how far their probability moved, not by what factor.

out: A > 0 and p - q > 0.2, or A < 0 and p - q < -0.2;   l = -stop(min(rho, 20)) A log pi, token mean
p and q: the token's probability under the policy and under who sampled it.

A ratio of 3 from 0.01 to 0.03 is nothing, one of 1.3 from 0.7 to 0.9 is much: PPO's clip has it the other way round.
`{"objective.divergence": "kl"}` measures by the KL divergence of "this token or another".
Choices. As in verl: bounds of 0.2, ratio at most 20. Over the behaviour policy, as the paper's trust region is. A
trainer that adds 1e-3 times the squared log-ratio on every token is not followed in that. The name also belongs to
diffusion policies.
"""

from gxpo.keys import Definition
from gxpo.objectives.gate_divergence import DivergenceMask

dppo_divergence = Definition(
    name="dppo_divergence",
    title="Rethinking the Trust Region in LLM Reinforcement Learning",
    arxiv="2602.04879",
    authors="Qi, Penghui and Zhou, Xiangxin and Liu, Zichen and Pang, Tianyu and Du, Chao and Lin, Min and Lee, "
    "Wee Sun",
    year=2026,
    idea="a trust region in probability: rare tokens may move by large factors, likely ones not",
    formula="l = -[|p - q| <= 0.2 or moving back] stop(min(rho, 20)) A log pi",
    evidence="secondary",
    keys={
        "objective.gate": DivergenceMask,
        "objective.ratio_over": "behaviour",
        "objective.aggregate": "token_mean",
    },
    choices="total variation, 0.2 both ways (verl); over the behaviour policy",
)
