r"""MPO (formerly SWEPO): the answers above a group's mean reward against all of them, those far from it weighing more.

x_i = beta sum_t (log policy - log reference) + alpha |r_i - mean r|^power
L = mean over groups of -log(sum_{r_i > mean r} e^x_i / sum_i e^x_i),   beta 0.1, alpha 1, power 1

Choices. Reconstructed from the abstract and memory of SWEPO's text, which has powers 0, 1 and 2 (0: no weights, here
alpha 0) and four answers a prompt. Answers at the mean are not above it; a group of equal rewards gives 0. With one
answer above and one below, and alpha 0, this is DPO. Other methods of this acronym mix preferences or prompts.
"""

from gxpo.algorithms.objectives.set_contrast import SetContrast
from gxpo.parts.definition import Definition

mpo_set = Definition(
    name="mpo_set",
    doc=__doc__,
    title="Multi-Preference Optimization: Generalizing DPO via Set-Level Contrasts",
    arxiv="2412.04628",
    authors="Gupta, Taneesh and Madhavan, Rahul and Zhang, Xuchao and Bansal, Chetan and Rajmohan, Saravan",
    year=2024,
    formula="L = mean_g -log(sum_{Y+} e^x / sum_Y e^x), x = beta sum_t log(pi/ref) + alpha |r - mean r|^p",
    evidence="reconstruction",
    keys={"objective": SetContrast},
    refuses={"objective.kl.place": ("reward",)},
    cost="a frozen reference model and its forward pass over the rollouts",
)
