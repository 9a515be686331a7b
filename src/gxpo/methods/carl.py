r"""CaRL: one reward for progress, multiplied by soft penalties; an infraction ends the attempt, and progress.

r = outcome * product of factors, and terminal added if failed;   A as in GRPO

The outcome is progress from 0 to 1; `speed` and `comfort` are components from 0 to 1 and `failed` one of 0 or 1, each
of reward weight 0, from your reward or environment (`reward.shape.factored.factors`, `.fail` name others).
Choices. The product is of a whole rollout, in the code of each step's progress. An infraction keeps what was paid
before it, as there (`reward.shape.factored.kept: 0` voids it; default changed on 2026-11-28, before it all was void);
terminal is 0, as there, but -0.01 of a route for a collision or a red light (`reward.shape.factored.terminal`). PPO
there, group statistics here. Stand-in: no driving.
"""

from gxpo.environments.rewards.shape import Shape
from gxpo.parts.definition import Definition

carl = Definition(
    name="carl",
    doc=__doc__,
    title="CaRL: Learning Scalable Planning Policies with Simple Rewards",
    arxiv="2504.17838",
    authors="Jaeger, Bernhard and Dauner, Daniel and Beisswenger, Jens and others",
    year=2025,
    evidence="reference-code",
    keys={
        "reward.shape.factored": Shape,
        "reward.shape.factored.function": "factored",
        "reward.shape.factored.factors": ("speed", "comfort"),
        "reward.shape.factored.fail": "failed",
    },
    code="autonomousvision/CaRL@5abef66c1bedefaf0a6cd65ed8925efe72dc5845 team_code_roach/reward/simple_reward.py "
    "team_code_roach/rl_config.py",
)
