r"""GTPO: what right and wrong answers share is not unlearned, and answers that the policy was unsure of are left out.

conflict token: in the run of equal tokens at the start, or at the end, of answers with A > 0 and with A < 0
w = 2 there where A > 0 (4 in both runs), 0 where A < 0;   answers with mean entropy above 0.7 (about ln 2) have w = 0
A_i = GRPO's - 0.1 mean_t H_t;   L = -sum w A log pi / tokens: no ratio, no clip, no reference

Choices. Whose answers are on which side is read off A after its entropy cost, and answers that are left out still count
there. The code's further division by the number of conflict tokens is left out: it rescales the whole loss by what
answers happen to share. Its ratio exp(lp - stop lp) is 1 always: the plain policy gradient.
"""

from gxpo.credit.entropy_cost import EntropyCost
from gxpo.keys import Definition
from gxpo.objectives.gate_log_likelihood import LogLikelihood
from gxpo.weighting.conflict import Conflict
from gxpo.weighting.entropy_ceiling import EntropyCeiling

gtpo = Definition(
    name="gtpo",
    title="GTPO: Trajectory-Based Policy Optimization in Large Language Models",
    arxiv="2508.03772",
    authors="Simoni, Marco and Fontana, Aleksandar and Rossolini, Giulio and Saracino, Andrea",
    year=2025,
    idea="tokens shared by good and bad answers are protected, and very uncertain answers are not trained",
    formula="A = A_GRPO - 0.1 mean H; w = 2 | 0 on shared starts and ends; w = 0 where mean H > 0.7; L = -w A log pi",
    evidence="reference-code",
    keys={
        "credit.add.entropy_cost": EntropyCost,
        "weight.conflict": Conflict,
        "weight.entropy_ceiling": EntropyCeiling,
        "objective.gate": LogLikelihood,
        "objective.aggregate": "token_mean",
    },
    choices="not divided by the number of conflict tokens; sides after the entropy cost",
    cost="a forward pass for entropies before the update",
    code="winstonsmith1897/GTPO@5d33811e8ea1cf76c665db65b247cef9d1e436dd gtpo/gtpo_training.py",
)
