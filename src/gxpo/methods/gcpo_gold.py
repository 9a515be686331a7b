r"""GCPO: reference (golden) answer in place of one rollout of an all-wrong group, with GSPO's sequence clip.

max_i r_i = 0:  o_G <- reference answer, r_G <- 1 (what the verifier gives it).  A = GRPO's on the resulting group.
s_i = exp(mean_t (log pi - log pi_old));  L = mean_i max(-A_i s_i, -A_i clip(s_i, 1 - 3e-4, 1 + 4e-4));  no KL

The ratio of the reference row. It has no behaviour policy, so its denominator is the policy at the start of the step: s
= 1 at the first update, and from there it drifts and is clipped like every other row's. The trainer always gives that
policy. Where a caller gives none, `objective.on_unknown_behaviour: one` holds s at 1, with REINFORCE's gradient: exact
at the first update and without a bound at later ones.

Choices. Read in summaries: the clip's width was not found and is GSPO's, whose ratio this is. Which rollout is replaced
is not said: the last. Groups in which all succeed are left as they are, though the abstract counts them as lost too. A
group without any failure, or with a success, is GSPO's without KL. Without an accepted reference answer a failed group
teaches nothing. Not GeometryZero's GCPO.
"""

from gxpo.parts.definition import Definition
from gxpo.sampling.rollouts.again import Again

gcpo_gold = Definition(
    name="gcpo_gold",
    doc=__doc__,
    title="GCPO: When Contrast Fails, Go Gold",
    arxiv="2510.07790",
    authors="Wu, Hao and Liu, Wei",
    year=2025,
    formula="all wrong: o_G = reference; s = exp(mean_t log rho); L = mean_i max(-A s, -A clip(s, 1 - 3e-4, 1 + 4e-4))",
    evidence="secondary",
    keys={
        "rollout": Again,
        "rollout.how": "reference",
        "rollout.keep": "for_last_failure",
        "objective.ratio": "sequence",
        "objective.clip_low": 3e-4,
        "objective.clip_high": 4e-4,
        "objective.on_unknown_behaviour": "one",
    },
    refuses={"objective.aggregate": ("token_mean",)},
    cost="a replaced rollout is sampled too; needs reference answers",
)
