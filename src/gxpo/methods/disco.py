r"""DisCO: scores of correct answers above those of wrong ones, under a KL constraint; no question weighs more by its
difficulty.

s_i = mean_t log policy;   J_g = mean_P s - tau log mean_N e^(s/tau);   D = mean_t (log old - log policy)
L = -mean_g J_g + (beta / 2) max(0, D - delta)^2,   tau 10, delta 1e-4, beta 1e3

Choices. The score is the log-likelihood; `objective.score: ratio` is the other one (tau 1), `objective.tau: .inf` is
DisCO-b. D is one number for the optimiser step, over the tokens of the groups with both labels (the code: of each
micro-batch, over all groups); with one update per rollout it is 0. The code's L-ratio branch calls another function
with an argument that it does not have. Groups without both labels have J = 0 and count in the mean. Credit is not
read.
"""

from gxpo.keys import Definition
from gxpo.objectives.discriminative import Discriminative

disco = Definition(
    name="disco",
    title="DisCO: Reinforcing Large Reasoning Models with Discriminative Constrained Optimization",
    arxiv="2505.12366",
    authors="Li, Gang and Lin, Ming and Galanti, Tomer and Tu, Zhengzhong and Yang, Tianbao",
    year=2025,
    idea="rank correct answers above wrong ones, hard wrong ones first, inside a trust region",
    formula="L = -mean_g [mean_P s - tau log mean_N e^(s/tau)] + (beta/2) max(0, KL(old || pi) - delta)^2",
    evidence="reference-code",
    keys={"objective": Discriminative},
    paper_defaults={"rollout.group_size": 8},
    refuses={"objective.kl.place": ("reward",)},
    choices="s = mean log-prob, tau 10; constraint over the whole optimiser step, on the groups with both labels",
)
