r"""TempSamp-R1: ground truth as a member of the group, with a soft-thresholded reward.

Group: G - 1 samples and one reference answer
r~ = 0.8 + 0.01 ln(1 + d) for d = r - 0.8 >= 0, else 0.8 - (e^-d - 1) / (e - 1);   A = GRPO's of r~ over all G

Choices. The paper's eqs. 2 and 4. Its task is finding moments in videos, scored by overlap; here any score from 0 to 1:
with binary ones the shaping only scales, and std takes that out again. The reference answer's ratio begins at 1, as
theirs: the policy at the start of the step replaces the unknown behaviour policy (`objective.on_unknown_behaviour:
one`). Its two alternatives (a scaled reward of the reference answer, an advantage anchored at 1.2 times the best
sample's) and the mix of answers with and without reasoning are not built. It takes one update of each batch, where all
ratios are 1. A reference answer that the verifier does not accept is left out.
"""

from gxpo.environments.rewards.shape import Shape
from gxpo.parts.definition import Definition
from gxpo.sampling.rollouts.reference import ReferenceInGroup

tempsamp_r1 = Definition(
    name="tempsamp_r1",
    doc=__doc__,
    title="TempSamp-R1: Effective Temporal Sampling with Reinforcement Fine-Tuning for Video LLMs",
    arxiv="2509.18056",
    authors="Li, Yunheng and Cheng, Jing and Jia, Shaoyong and Kuang, Hangyi and Jiao, Shaohui and Hou, Qibin and "
    "Cheng, Ming-Ming",
    year=2025,
    formula="r~ = tau + 0.01 ln(1 + d) or tau - (e^-d - 1) / (e - 1), d = r - tau; A = (r~ - mean_g) / std_g",
    evidence="paper",
    keys={
        "rollout": ReferenceInGroup,
        "reward.shape.soft_threshold": Shape,
        "reward.shape.soft_threshold.function": "soft_threshold",
        "objective.on_unknown_behaviour": "one",
    },
    paper_defaults={"rollout.group_size": 4},
    cost="one sample fewer a group; needs reference answers",
)
