r"""MDPO: mirror descent policy optimization: annealed KL penalty to the old policy, several updates a step.

L = mean over tokens of -A rho + (1 / t_k) (rho log rho - rho + 1),   t_k = 1 - k / K over the run, not below 0.05
Over all policies the minimum is pi_{k+1}(a) ~ pi_k(a) exp(t_k A(a)): no clip.

Choices. The authors' code is for control: L is their loss in expectation over the old policy. They have KL(pi || pi_k),
the new policy first, between distributions, which are not kept here: it is estimated from samples of pi_k by rho log
rho - rho + 1, unbiased as rho log rho is, but without noise on the first update, where its gradient is 0. So there are
four updates of all data a step (ten in their command, `mdpo@paper`): with one, the term is idle. Their t_k is one step
late, from 1 + 1 / K to 2 / K, their advantage GAE standardised over the step. Nothing bounds rho, there or here: where
it overflows (a log-ratio above 88 in float32) L has no finite gradient, and the step is left out and counted.
"""

from gxpo.algorithms.objectives.mirror_kl import MirrorKl
from gxpo.algorithms.objectives.surrogate import unclipped
from gxpo.parts.definition import Definition

mdpo = Definition(
    name="mdpo",
    doc=__doc__,
    title="Mirror Descent Policy Optimization",
    arxiv="2005.09814",
    authors="Tomar, Manan and Shani, Lior and Efroni, Yonathan and Ghavamzadeh, Mohammad",
    year=2020,
    formula="L = mean -A rho + (1 / t_k) (rho log rho - rho + 1), t_k = 1 - k / K",
    evidence="reference-code",
    code="manantomar/Mirror-Descent-Policy-Optimization@c9bd3ba080e3 mdpo_on/mdpo.py mdpo_on/run_mujoco.py",
    keys={
        "objective.surrogate": unclipped,
        "objective.aggregate": "token_mean",
        "objective.add.mirror_kl": MirrorKl,
        "objective.add.mirror_kl.aggregate": "token_mean",
        "update.epochs": 4,
    },
    paper_defaults={"update.epochs": 10},
)
