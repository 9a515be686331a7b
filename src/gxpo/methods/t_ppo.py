r"""T-PPO: truncated rollouts: PPO on windows of tokens; the critic is trained once a rollout is finished.

rollout: at most half of its tokens a step; an unfinished one goes on in the next step
policy:  the tokens of the newest window. A_t of an unfinished rollout: GAE backwards with V(s_l) := V(s_{l-1}), nothing
         paid
critic:  the Monte-Carlo return on all tokens of a rollout, in the step in which it ends

Choices. discount 1, lambda 0.95 for the policy and 1 for the critic (our source is a summary: discount 1, an example
with 0.9). Two windows; the summary has three, 8k of 24k tokens (`t_ppo@paper`). The paper leaves out a tail of an
unfinished rollout's tokens, of a length that the summary does not give: here it is kept. The tokens of earlier windows
stay in the policy term's denominators. Each step starts its tasks in addition to unfinished ones, so its number of
rollouts varies; the paper fills up to a constant one. Until something has ended, and the value with it, nothing is
learned.
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
    evidence="secondary",
    keys={
        "rollout": PartialRollouts,
        "credit": Gae,
        "credit.lam": 0.95,
        "credit.target_lam": 1.0,
        "credit.cut": "extend",
        "weight.newest_version": TokenWeight,
        "weight.newest_version.by": "version",
        "weight.newest_version.keep": "at_maximum",
        "weight.newest_version.scope": "trajectory",
        "objective.add.value": ValueRegression,
    },
    paper_defaults={"rollout.windows": 3},
    cost="a forward pass for the values at the start of the step; one vector of parameters",
)
