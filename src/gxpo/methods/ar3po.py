r"""AR3PO: adaptive rollout in stages until a prompt has a success, and reuse of a stored correct answer.

Stage s = 1..S: k answers to every prompt that has no right one yet, so n_q is k, 2k, ... or S k. After S stages without
one, and with right answers of earlier steps stored: one of them takes the place of a wrong row, r = 1.
A = GRPO's over the n_q rows;  L = sum max(-A rho, -A clip(rho, 0.8, 1.28)) / tokens

Choices. Read in summaries; neither the authors' code nor the paper's text was found. k = 4, S = 2
(`rollout.stage_size`, `rollout.group_size`) fits the published average of 5.7 answers a prompt. The stored answer is
drawn at random from the newest 8 (`rollout.choice: recent`, `rollout.max_stored`) and replaces the last wrong row. It
counts in the group's mean and std and has no gradient, which is said to be the paper's best variant. With one
(`rollout.coef: 1`) two treatments of its ratio are described: evaluated anew under the policy at the start of the step
(`objective.ratio_over: proximal`: exactly 1 at the first update), or over the log-probs it was sampled with
(`behaviour`). "DAPO-like" is read as clip-higher and token mean, without its overlong penalty; the token mean weighs
prompts by n_q, and its denominator has the reused row's tokens. Stopping at the first success makes the success rate of
easy prompts, and the baseline, no longer unbiased.
"""

from gxpo.parts.definition import Definition
from gxpo.sampling.rollouts.again import Again

ar3po = Definition(
    name="ar3po",
    doc=__doc__,
    title="Improving Sampling Efficiency in RLVR through Adaptive Rollout and Response Reuse",
    arxiv="2509.25808",
    authors="Zhang, Yuheng and Yao, Wenlin and Yu, Changlong and others",
    year=2025,
    formula="n_q = k min(stages until a success, S); A = (r - mean_q) / std_q; L = sum clip loss / tokens",
    evidence="secondary",
    keys={
        "rollout": Again,
        "rollout.when": "unsolved",
        "rollout.how": "more",
        "rollout.keep": "everything",
        "rollout.reuse": True,
        "objective.clip_high": 0.28,
        "objective.aggregate": "token_mean",
    },
    cost="saves samples: k (1 + (1 - p)^k) answers of a prompt of pass rate p, for S = 2",
)
