r"""Scaf-GRPO: scaffolded hints: in an all-wrong group the least sufficient hint replaces one rollout.

Rollout, after 50 steps: a group whose attempts are all wrong is tried once under each hint, from the least to the
most; with L* = min {level : right}, that attempt replaces the group's first. If no hint helps, the group
stays as it was (A = 0).
A and L as in GRPO, with rho_t = pi(o_t | q+h, o_<t) / pi_old(o_t | q+h, o_<t) for the hinted attempt: it is trained
under the prompt it was sampled under. G = 8, one right: A = 7/8 / std = 2.474867, the others -0.353552.

Choices. Hints are the task's own (tiers of chunks, each chunk shown after those before it, with a space between); where
it has none, quarters of its solution, cut between words. They are on a separate line after "Hints: "; the code repeats
the question after "Question: ", and names the tier ("Knowledge Hints: ", "Solution Hints: "): say so in
`rollout.template` and in the texts. The released code leaves its planning tier out and tries four chunks of each other
tier, however few there are; here all tiers that a task brings are tried, each chunk once. A group is dead when no
verdict is positive (the code: all rewards exactly 0, which shaping breaks). The warm-up is a global counter as in the
code; the paper mentions a diagnosis by problem. `objective.context=trained` is the code's `replace_hint_prompt`: the
hinted answer under the plain prompt; there the ratio to the proximal policy is 1 and hides that it was sampled
otherwise, and `objective.ratio_over=behaviour` gives pi(o|q) / pi_old(o|q+h).
"""

from gxpo.parts.definition import Definition
from gxpo.sampling.rollouts.again import Again

scaf_grpo = Definition(
    name="scaf_grpo",
    doc=__doc__,
    title="Scaf-GRPO: Scaffolded Group Relative Policy Optimization for Enhancing LLM Reasoning",
    arxiv="2510.19807",
    authors="Zhang, Xichen and Wu, Sitong and Zhu, Yinghao and Tan, Haoru and Yu, Shaozuo and He, Ziyi and Jia, Jiaya",
    year=2025,
    formula="L* = min {level: r(o ~ pi(q + h_level)) > 0}; o_1 <- o_L*, trained under q + h_L*; A, L as GRPO",
    evidence="reference-code",
    code="dvlab-research/Scaf-GRPO@1085db539b929ea6fed5ec3b71e3ea4c48c27612 hint_mix_grpo/trainer/ray_trainer.py "
    "sh/hint_mix_grpo/bs256_6k_mix.sh",
    keys={
        "rollout": Again,
        "rollout.how": "each_hint",
        "rollout.keep": "right_for_first",
        "rollout.warmup_steps": 50,
        "objective.context": "sampled",
    },
    paper_defaults={
        "tasks.per_step": 256,
        "update.minibatches": 4,
        "optim.lr": 1e-6,
        "sampling.max_new_tokens": 2048,
    },
    cost="one more rollout for each hint of an all-wrong group",
)
