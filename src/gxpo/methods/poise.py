r"""POISE: leave-one-out baseline from a linear probe on the hidden states of sibling rollouts.

phi_j = [mean hidden state of the last 10 prompt tokens; of the last 10 action tokens; entropy statistics]
g     = linear regression of the siblings' mean outcome on phi, over the newest rollouts of the steps before
A_i   = r_i - mean_{j != i} g(phi_j):   nothing that rollout i did is in its baseline, so the gradient is unbiased

Choices. The paper (its code is announced) has two rollouts a prompt, A_1 = r_1 - g(phi_2); with more, the mean over the
others. It names three entropy statistics without saying which: mean, standard deviation and maximum. It takes layer 19
of 28 or 36 (`signal.value_probe.layer`), here the last, and ridge 0.01 on summed squares, which for n rows is
`signal.value_probe.ridge: 0.01 / n`; here 0.1 on their mean, since a small buffer has fewer rows than features.
Predictions stay between the least and largest outcome seen, 0 and 1 in the paper. Until 128 rollouts are in the buffer,
the baseline is the siblings' mean outcome. A group of one has advantage 0; groups of equal outcomes learn.
"""

from gxpo.algorithms.signals.value_probe import ValueProbe
from gxpo.parts.definition import Definition

poise = Definition(
    name="poise",
    doc=__doc__,
    title="Your Language Model is Its Own Critic: Reinforcement Learning with Value Estimation from Actor's Internal "
    "States",
    arxiv="2605.07579",
    authors="Choi, Yunho and Lim, Jongwon and Ahn, Woojin and Oh, Minjae and Shim, Jeonghoon and Jo, Yohan",
    year=2026,
    formula="A_i = r_i - mean_{j != i} g(phi_j), g linear in hidden states and entropies, fitted on earlier steps",
    evidence="paper",
    keys={"credit.center": "baseline", "credit.scale": "none", "signal.value_probe": ValueProbe},
    paper_defaults={"rollout.group_size": 2},
    cost="a forward pass for hidden states and entropies; a closed-form regression; the buffer in the checkpoint",
)
