r"""RLOO: REINFORCE leave-one-out: the baseline is the mean reward of the other rollouts of the group.

A_i = r_i - mean_{j != i} r_j = G / (G - 1) (r_i - mean_g r)

Choices. From the article in which the first author presents it ("Putting RL back in RLHF", Huang and Ahmadian, 2024);
the paper's own text and code were not to be had. Only the advantage: its loss is REINFORCE on the
whole answer as one action, -A sum_t log policy, whose on-policy gradient is that of the base's clip at ratio 1 with
`objective.aggregate: sequence_sum`, and the reward is the score less beta times the KL (k1) summed over the answer
(`objective.kl.place: reward`). `rloo@trl` has the loss of the trainer that the article presents, from its first
version (2024) on: the product of the sequence's ratios, clipped, and KL (k1) in the reward. A group of one has
advantage 0 (of verl's two implementations one gives 0, the other the raw reward; TRL 0).
"""

from gxpo.parts.definition import Definition

rloo = Definition(
    name="rloo",
    doc=__doc__,
    title="Back to Basics: Revisiting REINFORCE Style Optimization for Learning from Human Feedback in LLMs",
    arxiv="2402.14740",
    authors="Ahmadian, Arash and Cremer, Chris and Galle, Matthias and others",
    year=2024,
    evidence="paper",
    keys={"credit.center": "leave_one_out", "credit.scale": "none"},
)
