r"""MaxRL: towards the gradient of the log-likelihood of success, which weighs a task by 1 / its success rate.

A_i = (r_i - mean_g r) / (mean_g r + 1e-6): for rewards 0 and 1, (1 - p) / p for a success and -1 for a failure.

Its sum over a group is 0. A rare success is worth far more than under GRPO: 1 of 8 has 7 against 2.47.
Choices. For outcomes >= 0; a group whose mean is not above 0 (all wrong) has 0. The code's main estimator: another of
its switches by the same name divides by the std, too, and a clipped one holds the mean above 0.125; neither is here.
"""

from gxpo.keys import Definition

maxrl = Definition(
    name="maxrl",
    title="Maximum Likelihood Reinforcement Learning",
    arxiv="2602.02710",
    authors="Tajwar, Fahim and Zeng, Guanning and Zhou, Yueer and others",
    year=2026,
    idea="divide by the group's mean instead of its std: maximum likelihood of success, not its rate",
    formula="A = (r - mean_g) / (mean_g + eps)",
    evidence="reference-code",
    keys={"credit.scale": "mean"},
    choices="mean not above 0: credit 0; no lower bound on the mean",
)
