r"""FAPO: a right answer whose reasoning is flawed earns less than a sound one, and more than a wrong one.

r = 1 right, -1 wrong, and right but flawed 1 - lambda = 0

Early, where most are wrong, the flawed answer is above the group's mean and is learned; later it is below.

Choices. As the code: lambda 1. "flaw" is a component of weight 0, 1 where a judge finds an error (`scoring.weights:
{correct: 1, flaw: 0}` and a reward of that name); the paper trains a generative reward model for it. A reward of yours
is asked about every attempt, wrong and held-out ones too, which the code's judge is not; gxpo's judge leaves wrong ones
out with `scoring.options.judge.only: correct` (and `reward.add.flawed.component: judge`, with a rubric that scores a
flaw as 1, `low: 0` and `high: 1`). Where the judge gives nothing, the code takes the answer for sound; here it is
unscored. The token mean and clip of its scripts are `fapo@paper`; their overlong penalty, whose lengths are the run's,
is `reward.add.overlong`, and no part of it. `until` switches the penalty off in groups of more right answers than
that share, and is not the paper's. Filter on the shaped reward.
"""

from gxpo.environments.rewards.feature import Feature
from gxpo.environments.rewards.shape import Shape
from gxpo.parts.definition import Definition

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
    paper_defaults={
        "objective.clip_high": 0.28,
        "objective.aggregate": "token_mean",
        "tasks.per_step": 512,
        "rollout.group_size": 8,
        "optim.lr": 1e-6,
    },
    cost="a judgement of every right answer, of every attempt where a reward of yours judges",
    code="verl-project/verl-recipe@48ea0a797fa29867ea0ad92aff7d284eec7d4be3 fapo/reward_fn_reasoning.py "
    "fapo/run_fapo_7b.sh",
)
