r"""FGRPR: graded (fuzzy) reward for numeric answers by relative error.

R = (1.5 - gap if gap < 0.5 else 0) + format;   gap = |y - y'| / |y|;   A as in GRPO over R

Choices. The reward falls from 1.0 to 0 at a gap of 1/2, as in the code. Its answers are strings of digits, and y = 0
earns nothing; here signs, decimals, fractions and thousands are read, and of y = 0 only 0 is near. Format is the task's
own component "format", or gxpo's, where the task has none. The verdict is the task's verifier's and is not paid.
`scoring.options: {numeric: {pattern: ...}}` says where the answer is.
"""

from gxpo.parts.definition import Definition

fgrpr = Definition(
    name="fgrpr",
    doc=__doc__,
    title="CrowdVLM-R1: Expanding R1 Ability to Vision Language Model for Crowd Counting using Fuzzy Group Relative "
    "Policy Reward",
    arxiv="2504.03724",
    authors="Wang, Zhiqiang and Feng, Pengbin and Lin, Yanbin and Cai, Shuzhang and Bian, Zongao and Yan, Jinghua and "
    "Zhu, Xingquan",
    year=2025,
    evidence="reference-code",
    keys={"scoring.weights": {"numeric": 1.0, "format": 1.0, "correct": 0.0}},
    code="yeyimilk/CrowdVLM-R1@2ef4f31aa5e9c2560054c928c13aaa77af0dd703 "
    "VLM-R1/src/open-r1-multimodal/src/open_r1/grpo_rec.py",
)
