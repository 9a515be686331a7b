r"""AEPO: entropy control by REINFORCE on positive samples drawn at a higher or lower temperature.

h = mean -log p of the last step;   T = 1.2 if h <= H* else 0.8
samples of the first quarter of the prompts at T with advantage > 0.05: the first m = min(60, all) of them (m / 2 where
h > H*) take the place of the step's first m rollouts, with A = 1;   then GRPO's update, ratio over the policy at
temperature 1

Choices. The rollouts that are replaced stay in their groups' statistics, as in the code, where advantages are known by
then. h is an estimate from sampled tokens, not the entropy; H* is 0.5. The first step, which knows no h, draws nothing
more: ours.
"""

from gxpo.algorithms.credit.baselines import constant_advantage
from gxpo.parts.definition import Definition
from gxpo.sampling.rollouts.hot_cold import HotColdReplay

aepo = Definition(
    name="aepo",
    doc=__doc__,
    title="Arbitrary Entropy Policy Optimization: Entropy Is Controllable in Reinforcement Fine-tuning",
    arxiv="2510.08141",
    authors="Wang, Chen and Li, Zhaochun and Bai, Jionghao and Zhang, Yuzhi and Cui, Shisheng and Zhao, Zhou and "
    "Wang, Yue",
    year=2025,
    formula="A = 1 on good samples at T = T_high if h <= H* else T_low, in the place of m of GRPO's rollouts",
    evidence="reference-code",
    keys={"rollout": HotColdReplay, "credit.add.for_origin": constant_advantage},
    cost="a quarter of the prompts are sampled twice",
    code="597358816/AEPO@b353a05441e9cedaed154d29aa75bcae472a6a27 verl/trainer/ray_trainer.py "
    "examples/qwen-math-7b-AEPO.sh",
)
