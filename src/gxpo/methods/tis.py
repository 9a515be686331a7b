r"""TIS: truncated importance sampling between sampler and learner.

w_t = min(proximal / behaviour, 2.0), detached, multiplied on the gated loss; it changes no denominator.

The same form as decoupled PPO with proximal = the policy at the start of the step. KL and entropy terms are not
weighted. With `objective.ratio_over: behaviour` the ratio itself contains the correction: then leave this out.

Choices. As in the first author's branch of verl, where it is off unless `tis_imp_ratio_cap` is above 0 and 2 in the
script; its script has DAPO's loss: `dapo+tis`.
"""

from gxpo.algorithms.weighting import Truncated
from gxpo.parts.definition import Definition

tis = Definition(
    name="tis",
    doc=__doc__,
    title="Your Efficient RL Framework Secretly Brings You Off-Policy RL Training",
    arxiv="",
    authors="Yao, Feng and Liu, Liyuan and Zhang, Dinghuai and others",
    year=2025,
    evidence="reference-code",
    code=(
        "yaof20/verl@1e413344a2f31aefdbd05457843274f84dff9f2d verl/trainer/ppo/core_algos.py "
        "recipe/dapo/run_dapo_qwen2.5_32b_tis.sh"
    ),
    keys={"weight.mismatch": Truncated},
    refuses={"objective.ratio_over": ("behaviour",)},
    cost="a forward pass over the rollouts before the update",
)
