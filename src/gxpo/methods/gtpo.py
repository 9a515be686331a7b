r"""GTPO: protect tokens shared by good and bad answers (conflict tokens), mask high-entropy answers; no clip, no KL.

conflict token: in the run of equal tokens at the start, or at the end, of answers with A > 0 and with A < 0
w = 2 there where A > 0 (4 in both runs), 0 where A < 0;   answers with mean entropy above 0.7 (about ln 2) have w = 0
A_i = r_i - mean_g r - 0.1 mean_t H_t;   L = -mean_i mean_t w A log pi: no ratio, no clip, no reference

Choices. No std: the code's line for it is commented out (`credit.scale: std`). Whose answers are on which side is read
off A after its entropy cost (the code: before it; of answers that are trained the cost is below 0.07, so that rewards
of 0 and 1 are on the same side in groups of up to 14), and answers that are left out still count there. The code also
divides each answer's loss by the number of its conflict tokens, which is left out: an answer that shares 50 tokens
would count a 50th. Its ratio exp(lp - stop lp) is 1 always: the plain policy gradient.
"""

from gxpo.algorithms.credit.bonus import Bonus
from gxpo.algorithms.objectives.surrogate import log_likelihood
from gxpo.algorithms.weighting.token_weight import TokenWeight
from gxpo.parts.definition import Definition

gtpo = Definition(
    name="gtpo",
    doc=__doc__,
    title="GTPO: Trajectory-Based Policy Optimization in Large Language Models",
    arxiv="2508.03772",
    authors="Simoni, Marco and Fontana, Aleksandar and Rossolini, Giulio and Saracino, Andrea",
    year=2025,
    formula="A = r - mean_g r - 0.1 mean H; w = 2 | 0 on shared starts and ends, 0 where mean H > 0.7; L = -w A log pi",
    evidence="reference-code",
    keys={
        "credit.scale": "none",
        "credit.add.entropy_cost": Bonus,
        "credit.add.entropy_cost.value": "certainty",
        "credit.add.entropy_cost.factor": 0.1,
        "weight.shared_affix_mask": TokenWeight,
        "weight.shared_affix_mask.by": "credit",
        "weight.shared_affix_mask.keep": "shared_affix",
        "weight.entropy_ceiling": TokenWeight,
        "weight.entropy_ceiling.by": "mean_entropy",
        "weight.entropy_ceiling.keep": "between",
        "weight.entropy_ceiling.high": 0.7,
        "objective.surrogate": log_likelihood,
    },
    cost="a forward pass for entropies before the update",
    code="winstonsmith1897/GTPO@5d33811e8ea1cf76c665db65b247cef9d1e436dd gtpo/gtpo_training.py",
)
