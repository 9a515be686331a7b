r"""POWER-DL: reward robust to rare answers by a weighted entropy, and labels that follow the policy, in pairs.

s_i = (sum_t log policy + 1) / length;   z = beta (s_better - s_worse)
l = -label log sigmoid(z) - (1 - label) log sigmoid(-z) - eta beta mean_t log policy(better)
label <- (1 - gamma) label + gamma sigmoid(z) after each step that has the pair, from 1 on

Choices. Reconstructed from the abstract and summaries: the weights w = 1 / length of the entropy are the paper's
example, beta 2, eta 1e-3 and gamma 0.1 are within what is reported and ours. eta beta is `objective.nll`, gamma
`objective.label_rate`. Labels move where a pair comes back, with rollout `logged`; of fresh rollouts each is new, and
this is POWER.
"""

from gxpo.algorithms.objectives.robust_pairs import RobustPairs
from gxpo.parts.definition import Definition

power_dl = Definition(
    name="power_dl",
    doc=__doc__,
    title="Sail into the Headwind: Alignment via Robust Rewards and Dynamic Labels against Reward Hacking",
    arxiv="2412.09544",
    authors="Rashidinejad, Paria and Tian, Yuandong",
    year=2024,
    formula="l = -label log sigmoid(z) - (1 - label) log sigmoid(-z) - eta beta log pi(y_w) / |y_w|, "
    "z = beta (s_w - s_l)",
    evidence="reconstruction",
    keys={
        "objective": RobustPairs,
        "objective.reference": "none",
        "objective.length_mean": True,
        "objective.length_offset": 1.0,
        "objective.beta": 2.0,
        "objective.nll": 2e-3,
        "objective.label_rate": 0.1,
    },
    refuses={"objective.kl.place": ("reward",)},
    cost="a label of every pair, in the checkpoint",
)
