r"""VPPO: train only the tokens most dependent on the observation; weigh trajectories by their dependence.

D_t = e^d - d - 1, d = log masked - log policy: held in [0, 10]; w_t = [D_t among the top 40% of its trajectory] scale_i
scale_i = 0.9 + 0.1 x_i / mean x, x_i = mean_t D_t brought to [0, 1] by the step's extremes;   loss = GRPO's times w

Choices. 60% of the patches of pictures are black, as in the code; on text, prompt and observation tokens are hidden.
Tokens that are masked out stay in the denominators; where all depend alike the scale is 1, as in the code. Extremes and
mean are over the step (the code: of mini- and micro-batches). The paper builds on DAPO (`vppo+dapo`); its scripts
penalise the mean of -log policy by 0.06: `vppo@paper`.
"""

from gxpo.algorithms.objectives.masked_kl import MaskedKl
from gxpo.algorithms.signals.masked_observation import MaskedObservation
from gxpo.algorithms.weighting.token_weight import TokenWeight
from gxpo.parts.definition import Definition

vppo = Definition(
    name="vppo",
    doc=__doc__,
    title="Spotlight on Token Perception for Multimodal Reinforcement Learning",
    arxiv="2510.09285",
    authors="Huang, Siyuan and Qu, Xiaoye and Li, Yafu and others",
    year=2025,
    formula="w = [k3(pi, pi masked) in the top 40% of o_i] (0.9 + 0.1 x_i / mean x); L = L_GRPO with w",
    evidence="reference-code",
    keys={
        "weight.perception": TokenWeight,
        "weight.perception.by": "dependency",
        "weight.perception.keep": "top_scaled",
        "weight.perception.scope": "trajectory",
        "signal.masked_observation": MaskedObservation,
    },
    paper_defaults={
        "objective.add.masked_kl": MaskedKl,
        "objective.add.masked_kl.coef": 0.0,
        "objective.add.masked_kl.entropy_coef": 0.06,
    },
    cost="two forward passes over the rollouts before the update, one with masked observations",
    code="huaixuheqing/VPPO-RL@a23c54b83565c48e9e1fb54cc1e18a1c63557c99 verl/workers/actor/dp_actor.py "
    "examples/configs/train_vppo_7b.sh",
)
