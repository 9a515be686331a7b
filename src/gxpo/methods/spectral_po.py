r"""SPO (later SGPO): partial reward in all-wrong groups by the position of the first wrong step.

RTS = steps before the first error / steps;   r = 1 if right; 1 / (1 + exp(-5 (RTS - 1/2))) if all of the group are
wrong; else 0;   A as in GRPO

Choices. RTS is component "correct_prefix" of your reward (weight 0): a step judge's (`scoring.weights: {correct: 1,
judge: 0}` with `scoring.options: {judge: {mode: first_error, ...}}`) or a function's. Without one the method is
refused. Steepness and middle are not known to us; 5 and 1/2 are a port's, which has the sign the other way round.
`reward.shape.correct_prefix.groups=all` pays wrong attempts in every group.
"""

from gxpo.environments.rewards.shape import Shape
from gxpo.parts.definition import Definition

spectral_po = Definition(
    name="spectral_po",
    doc=__doc__,
    title="Spectral Policy Optimization: Coloring your Incorrect Reasoning in GRPO",
    arxiv="2505.11595",
    authors="Chen, Peter and Li, Xiaopeng and Li, Ziniu and Chen, Xi and Lin, Tianyi",
    year=2025,
    formula="r = 1 if right, else sigmoid(5 (RTS - 0.5)) in all-wrong groups; A as GRPO",
    evidence="secondary",
    keys={"reward.shape.correct_prefix": Shape, "reward.shape.correct_prefix.function": "correct_prefix"},
    cost="a judge's answer for each attempt",
)
