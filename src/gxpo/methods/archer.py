r"""ArCHer: hierarchical actor-critic with utterance-level double Q and V critics and a token-level policy gradient.

A   = min(Q1, Q2) - min(V1, V2) of the utterance;   advantage of a token: A - b_t, b_t a baseline fitted to A
Q_i -> r + gamma V_i(next turn), V_i -> Q_i(what was said): squared errors;   actor: -A log pi, no ratio, no clip

Choices. On policy: the reference keeps a replay buffer, samples the utterance again for the targets of V and for the
actor, and has target networks that follow with 0.1 a step. Here the utterance is already a sample of the policy, the
step's own rollouts are all there is, and targets are of the heads at the start of the step: with that nothing is off
policy, and each rollout is learned from once. The critic is linear heads on the policy's own body (there a second
model). They begin at 0, and the two of a pair differ because each learns from half of the rollouts (there by random
initialisation). Q is read in the state before the utterance's last token. gamma 0.9 is the trainer's; their
configurations have 0.95 (`archer@paper`) and no token baseline (`use_baseline`). The loss of a rollout is the mean over
its tokens (the base's); there it is the sum over an utterance. Other epochs and rates of the reference are not taken
over.
"""

from gxpo.algorithms.credit.twin_critic import TwinCritic
from gxpo.algorithms.objectives.surrogate import unclipped
from gxpo.algorithms.objectives.value import ValueRegression
from gxpo.parts.definition import Definition

HEADS = ("q1", "q2", "v1", "v2", "baseline")

archer = Definition(
    name="archer",
    doc=__doc__,
    title="ArCHer: Training Language Model Agents via Hierarchical Multi-Turn RL",
    arxiv="2402.19446",
    authors="Zhou, Yifei and Zanette, Andrea and Pan, Jiayi and Levine, Sergey and Kumar, Aviral",
    year=2024,
    formula="A = min(Q1, Q2) - min(V1, V2); L = -mean (A - b_t) rho_t + squared errors of Q, V and b",
    evidence="reference-code",
    keys={
        "credit": TwinCritic,
        "objective.surrogate": unclipped,
        **{f"objective.add.{name}": ValueRegression for name in HEADS},
        **{f"objective.add.{name}.head": name for name in HEADS},
    },
    paper_defaults={"credit.discount": 0.95},
    cost="a forward pass for five values at the start of the step; five vectors of parameters",
    code="YifeiZhou02/ArCHer@7c771a7610cb34e54ba53d69d1fb7337103e5648 archer/algorithms/archer/trainer.py "
    "archer/models/archer_agent.py archer/models/critic.py scripts/config/default.yaml",
)
