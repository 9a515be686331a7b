r"""GHPO: all-wrong groups are sampled again with a growing prefix of the reference solution as a hint.

Rollout: while the verdicts of a group are all wrong, all G attempts are sampled again under q + a sentence + s[: n], n
= round(f |s|), f = 0.25, 0.5, 0.75, s the solution. The newest attempts are the group, and are trained under the prompt
with the hint. A and L as in GRPO; loss by sequence.

Choices. The fractions are the code's, which declares `hint_ratio` and never reads it; halves are rounded to the even
number of characters, as there. A word that would be cut in two is left out; the code cuts it (`rollout.cut:
characters`). A line with a sentence of ours precedes the hint, as one of theirs does (`rollout.template`). Only
verdicts decide (the code: its first reward column, accuracy). An all-wrong group in which a format reward differs is
trained by plain GRPO; here as there it is attempted again. The reference's reward is 1.0 accuracy + 0.5 format: say
`scoring.weights: {correct: 1.0, format: 0.5}`. Its prompts are cut from the left after the hint is added; here nothing
is cut.
"""

from gxpo.parts.definition import Definition
from gxpo.sampling.rollouts.again import Again

ghpo = Definition(
    name="ghpo",
    doc=__doc__,
    title="GHPO: Adaptive Guidance for Stable and Efficient LLM Reinforcement Learning",
    arxiv="2507.10628",
    authors="Liu, Ziru and Gong, Cheng and Fu, Xinyu and Liu, Yaofang and Chen, Ran and Hu, Shoubo and others",
    year=2025,
    formula="while all wrong: o_i ~ pi(q + s[: round(f |s|)]), f = 1/4, 1/2, 3/4; A, L as GRPO under that prompt",
    evidence="reference-code",
    code="hkgc-1/GHPO@af0a7dd859eafca17531bd7b01c76ccb3e36e0c0 src/ghpo/ghpo_trainer.py "
    "recipes/Qwen2.5-Math-7B/ghpo/config_ghpo.yaml",
    keys={"rollout": Again, "rollout.how": "next_hint", "rollout.keep": "newest", "objective.context": "sampled"},
    paper_defaults={"credit.eps": 1e-4, "optim.lr": 1e-6, "sampling.max_new_tokens": 2048},
    cost="up to three more groups for each all-wrong one: their tokens are charged",
)
