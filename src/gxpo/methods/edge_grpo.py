r"""EDGE-GRPO: entropy-driven advantages: divided by the answer's entropy relative to the mean of the step.

A'_i = A_i H / H_i;   H_i = mean_t entropy of answer i, H = mean_i H_i over the step

Choices. H_i is over the answer's own tokens and detached: the code averages over padding too, and lets the loss flow
back through the entropy. The factor is held in [0.1, 10], bounds that the code defines and does not apply: without them
an answer that was certain throughout has no finite factor (`weight.relative_entropy.least`, `.most`). It is applied to
the loss after the gate, which for a clip is scaling A. Guided error correction (wrong answers continued after an
injected doubt, given the answer, or replaced by the solution) is not built: no rollout here goes on after an answer's
end. So groups of equal outcomes still teach nothing.
"""

from gxpo.algorithms.weighting.token_weight import TokenWeight
from gxpo.parts.definition import Definition

edge_grpo = Definition(
    name="edge_grpo",
    doc=__doc__,
    title="EDGE-GRPO: Entropy-Driven GRPO with Guided Error Correction for Advantage Diversity",
    arxiv="2507.21848",
    authors="Zhang, Xingjian and Wen, Siwei and Wu, Wenjun and Huang, Lei",
    year=2025,
    evidence="reference-code",
    keys={
        "weight.relative_entropy": TokenWeight,
        "weight.relative_entropy.by": "mean_entropy",
        "weight.relative_entropy.keep": "relative_entropy",
        "weight.relative_entropy.unit": "trajectory",
    },
    paper_defaults={"credit.eps": 1e-4},
    cost="a forward pass over the rollouts before the update, with entropies",
    code="ZhangXJ199/EDGE-GRPO@cbe13ca8e21af39f7b4c791bc6226348267dbfb2 trl_edge/trainer/grpo_aha_trainer.py",
)
