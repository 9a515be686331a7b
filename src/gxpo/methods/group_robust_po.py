r"""GR-DPO (group-robust preference optimization): DPO on the worst-off population, by mirror ascent on weights.

l_k = mean over the pairs of population k of DPO's loss;   w_k <- w_k e^(rate l_k) / sum, rate 0.01
L = sum_k w_k l_k

Choices. The authors call it GRPO; no kin of group-relative policy optimization. A population is what the column
`population` of the data says (`objective.population: info.KEY`), never the group of rollouts. Weights move before they
are applied, as in the code, once a step (there in each micro-batch and on each rank by itself); l_k is a mean, where
the code's default divides the sum by the population's size in the data. `objective.form: ipo` is GR-IPO. A population
that a step lacks loses weight, as there. The code knows all of the data's populations and weighs them from the first
step on; here one is known from its first pairs on, and begins with the mean weight of those before it.
"""

from gxpo.algorithms.objectives.robust_pairs import RobustPairs
from gxpo.parts.definition import Definition

group_robust_po = Definition(
    name="group_robust_po",
    doc=__doc__,
    title="Group Robust Preference Optimization in Reward-free RLHF",
    arxiv="2405.20304",
    authors="Ramesh, Shyam Sundhar and Hu, Yifan and Chaimalas, Iason and others",
    year=2024,
    formula="L = sum_k w_k l_k, w_k <- w_k e^(rate l_k) / sum",
    evidence="reference-code",
    code="rsshyam/Group-robust-preference-optimization@0833ecd72ee474247cf9684d026792a2867e82ca "
    "src/trainers/grouptrainer.py",
    keys={"objective": RobustPairs, "objective.population": "info.population"},
    refuses={"objective.kl.place": ("reward",)},
    cost="a frozen reference model and its forward pass over the rollouts",
)
