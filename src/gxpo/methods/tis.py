r"""TIS: a weight that corrects tokens sampled by an engine that is not quite the learner.

w_t = min(proximal / behaviour, 2.0), detached, multiplied on the gated loss; it changes no denominator.

The same form as decoupled PPO with proximal = the policy at the start of the step. KL and entropy terms are not
weighted. With `objective.ratio_over: behaviour` the ratio itself contains the correction: then leave this out.
"""

from gxpo.keys import Definition
from gxpo.weighting import Truncated

tis = Definition(
    name="tis",
    title="Your Efficient RL Framework Secretly Brings You Off-Policy RL Training",
    arxiv="",
    authors="Yao, Feng and Liu, Liyuan and Zhang, Dinghuai and others",
    year=2025,
    idea="truncated importance weights between sampler and learner",
    formula="w = min(pi_proximal / pi_behaviour, 2)",
    evidence="secondary",
    keys={"weight.mismatch": Truncated},
    refuses={"objective.ratio_over": ("behaviour",)},
    choices="token level, cap 2 (verl, TRL)",
    cost="a forward pass over the rollouts before the update",
)
