r"""T-PPO: truncated rollouts: PPO on windows of tokens; the critic is trained once a rollout is finished.

rollout: at most half of its tokens a step; an unfinished one goes on in the next step
policy:  the tokens of the newest window. A_t of an unfinished rollout: GAE backwards with V(s_l) := V(s_{l-1}), nothing
         paid, and 0 for its last 8 tokens
critic:  the Monte-Carlo return on all tokens of a rollout, in the step in which it ends, a mean over rollouts

Choices. The authors' code is a recipe proposed to verl, two of them its co-authors. discount 1, lambda 0.95 for the
policy and 1 for the critic, the tail of 8 and the critic's mean over rollouts are its own (defaults changed on
2026-11-28: before, `credit.cut: extend`, which keeps the tail, and a mean over tokens). Two windows; the paper has
three, 8k of 24k tokens (`t_ppo@paper`). Its script also whitens the newest windows' advantages and holds them in [-10,
10], lets lambda grow with the length l (1 - 1 / (.05 l), at least 0.95, l half a window more where unfinished), clips
values at -.5 and +.6, and imitates right rollouts with weight .1: left out. The tokens of earlier windows stay in the
policy term's denominators, where the code counts the newest. Each step starts its tasks in addition to unfinished ones,
so its number of rollouts varies; theirs fills up to a constant one. Until something has ended, and the value with it,
nothing is learned; an unfinished rollout teaches where its window has more than 8 tokens (`credit.tail`).
"""

from gxpo.algorithms.credit.gae import Gae
from gxpo.algorithms.objectives.value import ValueRegression
from gxpo.algorithms.weighting.token_weight import TokenWeight
from gxpo.parts.definition import Definition
from gxpo.sampling.rollouts.partial import PartialRollouts

t_ppo = Definition(
    name="t_ppo",
    doc=__doc__,
    title="Truncated Proximal Policy Optimization",
    arxiv="2506.15050",
    authors="Fan, Tiantian and Liu, Lingjun and Yue, Yu and Chen, Jiaze and others",
    year=2025,
    formula="A_t = r_t + V_{t+1} - V_t + l A_{t+1}, V(s_l) := V(s_{l-1}) if unfinished; V fits the return if finished",
    evidence="reference-code",
    keys={
        "rollout": PartialRollouts,
        "credit": Gae,
        "credit.lam": 0.95,
        "credit.target_lam": 1.0,
        "credit.cut": "trim",
        "weight.newest_version": TokenWeight,
        "weight.newest_version.by": "version",
        "weight.newest_version.keep": "at_maximum",
        "weight.newest_version.scope": "trajectory",
        "objective.add.value": ValueRegression,
        "objective.add.value.aggregate": "sequence_mean",
    },
    code="HanlinDu/verl@5a66921112a5b641ff46621d34d4f5403bc9f180 recipe/tppo/tppo_algos.py "
    "recipe/tppo/tppo_trainer.py recipe/tppo/tppo_actor.py recipe/tppo/tppo_critic.py recipe/tppo/run_tppo.sh",
    paper_defaults={"rollout.windows": 3, "objective.clip_high": 0.28},
    cost="a forward pass for the values at the start of the step; one vector of parameters",
)
