r"""DisCO: discriminative objective (correct scores against log-sum-exp of wrong ones) under a KL constraint.

s_i = mean_t log policy;   J_g = mean_P s - tau log mean_N e^(s/tau);   D = mean_t (log old - log policy)
L = -mean_g J_g + (beta / 2) max(0, D - delta)^2,   tau 10, delta 1e-4, beta 1e3

Choices. The score is the log-likelihood; `objective.score: ratio` is the other one (tau 1), `objective.tau: .inf` is
DisCO-b. D is over the tokens of all groups, as coded, or, with `objective.constrained: contrasted`, of those with both
labels, which alone have to be run then. It is one number for the optimiser step (the code: for each micro-batch of all
devices); with one update per rollout it is 0, and the scripts make four. Where no group of the step has both labels
nothing is done (the code: D still pulls). The code's L-ratio branch calls another function with an argument that it
does not have. Groups without both labels have J = 0 and count in the mean. Advantages are not read.
"""

from gxpo.algorithms.objectives.sequence_losses import Discriminative
from gxpo.parts.definition import Definition

disco = Definition(
    name="disco",
    doc=__doc__,
    title="DisCO: Reinforcing Large Reasoning Models with Discriminative Constrained Optimization",
    arxiv="2505.12366",
    authors="Li, Gang and Lin, Ming and Galanti, Tomer and Tu, Zhengzhong and Yang, Tianbao",
    year=2025,
    formula="L = -mean_g [mean_P s - tau log mean_N e^(s/tau)] + (beta/2) max(0, KL(old || pi) - delta)^2",
    evidence="reference-code",
    code="Optimization-AI/DisCO@bd2b078129347a87c10fbb64df12ed50dce59947 verl/verl/trainer/ppo/core_algos.py "
    "verl/verl/workers/actor/dp_actor.py scripts/train/run_disco_logL_1.5b_8k.sh",
    keys={"objective": Discriminative},
    paper_defaults={"rollout.group_size": 8, "tasks.per_step": 128, "update.minibatches": 4, "optim.lr": 2e-6},
    refuses={"objective.kl.place": ("reward",)},
    cost="groups without both labels are run too",
)
