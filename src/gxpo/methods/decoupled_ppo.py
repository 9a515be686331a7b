r"""Decoupled PPO: clip against the proximal policy, with an importance weight from the behaviour policy (AReaL).

rho = pi / proximal, clipped;   w = proximal / behaviour, 0 where it exceeds 5;   l = w max(-A rho, -A clip(rho))

Choices. The form is Hilton et al.'s (arXiv 2110.00641). The proximal policy is the learner's at the start of the step,
as in AReaL, where it is recomputed before the update. Tokens of w > 5 are masked (AReaL's former default; there now an
option, `rejection_sampling`; `weight.mismatch_mask.token_max`), not truncated, and stay in the denominators. With a
truncation at 2 in place of the mask the same form is `tis`. Over the behaviour policy the ratio would hold w already:
refused. Over tokens it is GRPO's mean, each answer alike; AReaL's is the mean over all tokens (`objective.aggregate:
token_mean`), masked ones counted.
"""

from gxpo.algorithms.weighting.mismatch import MismatchMask, Truncated
from gxpo.parts.definition import Definition

decoupled_ppo = Definition(
    name="decoupled_ppo",
    doc=__doc__,
    title="AReaL: A Large-Scale Asynchronous Reinforcement Learning System for Language Reasoning",
    arxiv="2505.24298",
    authors="Fu, Wei and Gao, Jiaxuan and Shen, Xujie and others",
    year=2025,
    evidence="reference-code",
    keys={
        "weight.mismatch": Truncated,
        "weight.mismatch.cap": 5.0,
        "weight.mismatch_mask": MismatchMask,
        "weight.mismatch_mask.token_min": 0.0,
        "weight.mismatch_mask.token_max": 5.0,
    },
    refuses={"objective.ratio_over": ("behaviour",)},
    cost="a forward pass over the rollouts before the update",
    code="inclusionAI/AReaL@4aef98d8d818af55b43621aaadba047ae10f4e77 areal/utils/functional/functional.py "
    "areal/api/cli_args.py",
)
