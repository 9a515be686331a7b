r"""FAPO: a right answer whose reasoning is flawed earns less than a sound one, and more than a wrong one.

r = 1 right, -1 wrong, and right but flawed 1 - lambda = 0

Early, where most are wrong, the flawed answer is above the group's mean and is learned; later it is below.

Choices. As the code: lambda 1, wrong answers are not judged. "flaw" is a component of weight 0, 1 where a judge finds
an error (`scoring.weights: {correct: 1, flaw: 0}` and a reward of that name); the paper trains a generative reward
model for it. Where the judge gives nothing, the code takes the answer for sound; here it is unscored. `until` switches
the penalty off in groups of more right answers than that share, and is not the paper's. Filter on the shaped reward.
"""

from gxpo.definition import Definition
from gxpo.rewards.feature import Feature
from gxpo.rewards.shape import Shape

fapo = Definition(
    name="fapo",
    doc=__doc__,
    title="FAPO: Flawed-Aware Policy Optimization for Efficient and Reliable Reasoning",
    arxiv="2510.22543",
    authors="Ding, Yuyang and Zhang, Chi and Li, Juntao and Lin, Haibin and Liu, Xin and Zhang, Min",
    year=2025,
    evidence="reference-code",
    keys={
        "reward.shape.signed": Shape,
        "reward.add.flawed": Feature,
        "reward.add.flawed.of": "component",
        "reward.add.flawed.component": "flaw",
        "reward.add.flawed.coef": -1.0,
        "reward.add.flawed.only": "correct",
    },
    paper_defaults={"objective.clip_high": 0.28, "tasks.per_step": 512},
    cost="a judgement of every right answer",
    code="verl-project/verl-recipe@48ea0a797fa29867ea0ad92aff7d284eec7d4be3 fapo/reward_fn_reasoning.py",
)
