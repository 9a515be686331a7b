r"""MAPO: mixed advantages: z-score for uncertain groups, percent deviation from the mean for certain ones.

l = 1 - 4 p (1 - p), p = share of the group that is right
A_i = (1 - l) (r_i - mean) / (std + eps) + l (r_i - mean) / (mean + eps)

At p = 1/2 this is GRPO, towards p = 0 and 1 it is MaxRL, whose advantage the second term is.
Choices. As in the code: sample std (`credit.ddof: 0` is the population's, which the closed forms in p need), eps 1e-6
on both. Its loss is a token mean: `mapo@paper`. There p counts rewards equal to 1; here it comes from the verdicts. Its
clip is EasyR1's, 0.2 and 0.3 with a dual clip at 3, and its scripts for GRPO add a KL loss of 0.01: neither is the
method's. Not the dialogue method of the same name (arXiv 2603.06194).
"""

from gxpo.algorithms.credit.success_rate import mixed_scale
from gxpo.parts.definition import Definition

mapo = Definition(
    name="mapo",
    doc=__doc__,
    title="MAPO: Mixed Advantage Policy Optimization",
    arxiv="2509.18849",
    authors="Huang, Wenke and Zhang, Quan and Fang, Yiyang and others",
    year=2025,
    formula="A = (1 - l) (r - mean) / std + l (r - mean) / mean, l = 1 - 4 p (1 - p)",
    evidence="reference-code",
    code="WenkeHuang/MAPO@debcfd3fe97f48200bfefb5fea65c8febc4788d6 code/verl/trainer/core_algos.py "
    "code/verl/trainer/ray_trainer.py code/verl/workers/actor/config.py",
    keys={"credit": mixed_scale},
    paper_defaults={"objective.aggregate": "token_mean"},
)
