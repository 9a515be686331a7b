r"""CAPO (curvature): mask tokens by a second-order model of the update (Hessian and Fisher of the last layer).

g = A (e_a - p) h^T in the head's weights, D = lr sign(g):  m_H = g.D + D.H.D / 2,  m_F = D.F.D / 2
keep where low <= m_H <= high and m_F <= most;   H.D.D = A [((e_a - p).Dh)^2 - Dh.(diag p - p p^T).Dh]

Choices. With this step both depend on the sampled token's probability, |h|_1 and A alone, so no logits are needed. The
authors' thresholds are fixed and tuned so that fewer than 8 % of tokens go: |m_H| < 5e-4 and m_F < 1e-3 with Dr. GRPO,
0.01 and 1e-4 with GRPO without a std, at lr 1.5e-5 (`weight.curvature.max_gain` and `.max_shift`; `@paper` has the
latter). Here they are quantiles of the step, a third of 8 % beyond each, and the lower one is never above 0. Where gxpo
differs from their code. Their D is lr times Adam's direction, from running moments of the head's gradient rows that
they keep in addition to the optimiser's (the gradient itself until there are any), over the top 50 tokens; D here is
what Adam does at its first step. They predict at the policy of every update, here at the start of the step, and their
learning rate follows its schedule: `weight.curvature.lr` is to be the update's. With GRPO their masked tokens leave the
denominator too, here they stay, as with their Dr. GRPO.
"""

from gxpo.algorithms.signals.hidden_states import state_norm
from gxpo.algorithms.weighting.token_weight import TokenWeight
from gxpo.parts.definition import Definition

capo_curvature = Definition(
    name="capo_curvature",
    doc=__doc__,
    title="Stabilizing Policy Gradients for Sample-Efficient Reinforcement Learning in LLM Reasoning",
    arxiv="2510.00819",
    authors="Melo, Luckeciano C. and Abate, Alessandro and Gal, Yarin",
    year=2025,
    formula="w = [low <= m_H <= high][m_F <= most], m_H and m_F in closed form from p, |h|_1, A",
    evidence="reference-code",
    code="luckeciano/stable-pg-llm@933fe0176b140ffa4390e021feb6e8d7da1bd735 src/open_r1/grpo_entropy_trainer.py "
    "src/open_r1/sparse_optim_models/sparse_adam_model.py src/open_r1/dr_grpo_trainer.py",
    keys={
        "weight.curvature": TokenWeight,
        "weight.curvature.by": "credit",
        "weight.curvature.keep": "curvature",
        "weight.curvature.sign": "nonzero",
        "signal.state_norm": state_norm,
    },
    paper_defaults={
        "weight.curvature.max_gain": 0.01,
        "weight.curvature.max_shift": 1e-4,
        "weight.curvature.lr": 1.5e-5,
        "optim.lr": 1.5e-5,
        "credit.scale": "none",
    },
    cost="a forward pass for hidden states before the update",
)
