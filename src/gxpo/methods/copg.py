r"""CoPG: contrastive policy gradient: leave-one-out baseline on KL-regularised rewards, off policy without ratios.

R_i = r_i - beta D_i, D_i = sum_t (log policy - log reference), of the policy as it is now
gradient = -mean_i (R_i - mean_{j != i} R_j) grad log policy(o_i), the bracket held fixed;   beta 0.1

Its only optimum is the policy that maximises reward - beta KL(policy || reference), whichever policy sampled: no ratio
to it. At beta 0 it is RLOO; with two samples it is IPO's regression.

Choices. From the paper (arXiv 2406.19185, eqs. 7 to 19); no code of the authors could be found. It trains on pairs of a
data set; groups give leave-one-out means, the mean of its loss over the pairs of a group, half of it for the two
members of a pair. Loss and gradient are means over trajectories. The gradient of a group is 1 / beta times GVPO's with
`objective.ratio_over: reference`. The paper sweeps beta and finds .03 to .1 stable, .06 best: `copg@paper`. Advantages
are not read.
"""

from gxpo.algorithms.objectives.sequence_losses import SquaredLogRatio
from gxpo.parts.definition import Definition

copg = Definition(
    name="copg",
    doc=__doc__,
    title="Contrastive Policy Gradient: Aligning LLMs on sequence-level scores in a supervised-friendly fashion",
    arxiv="2406.19185",
    authors="Flet-Berliac, Yannis and Grinsztajn, Nathan and Strub, Florian and others",
    year=2024,
    formula="grad = -mean_i [(r - beta D)_i - mean_{j != i} (r - beta D)_j] grad log pi(o_i), D = log(pi/ref)",
    evidence="paper",
    keys={"objective": SquaredLogRatio, "objective.baseline": "others", "objective.ratio_over": "reference"},
    paper_defaults={"objective.tau": 0.06},
    refuses={"objective.kl.place": ("reward",)},
    cost="a frozen reference model and its forward pass over the rollouts",
)
