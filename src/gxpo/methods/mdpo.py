r"""MDPO: each step approximately solves a mirror descent step, a linear gain less the KL from the old policy, by
several updates.

L = mean_i mean_t [-A rho + (1 / t_k) (rho log rho - rho + 1)],   t_k = 1 - k / K over the run, not below 0.05
Over all policies the minimum is pi_{k+1}(a) ~ pi_k(a) exp(t_k A(a)): no clip.

Choices. A reconstruction for sequences of tokens. KL(pi || pi_k), the new policy first, is estimated from samples of
pi_k by rho log rho - rho + 1: unbiased as rho log rho is, but without noise on the first update, where its gradient is
0. So there are four updates of all data a step (about ten in the paper, `mdpo@paper`): with one, the term is idle.
"""

from gxpo.keys import Definition
from gxpo.objectives.gate import Unclipped
from gxpo.objectives.mirror_kl import MirrorKl

mdpo = Definition(
    name="mdpo",
    title="Mirror Descent Policy Optimization",
    arxiv="2005.09814",
    authors="Tomar, Manan and Shani, Lior and Efroni, Yonathan and Ghavamzadeh, Mohammad",
    year=2020,
    idea="a trust region as a penalty that gets stronger over the run, solved by several updates",
    formula="L = mean -A rho + (1 / t_k) (rho log rho - rho + 1), t_k = 1 - k / K",
    evidence="reconstruction",
    keys={
        "objective.gate": Unclipped,
        "objective.add.mirror_kl": MirrorKl,
        "update.epochs": 4,
    },
    paper_defaults={"update.epochs": 10},
    choices="sampled KL that is 0 with its gradient on policy; four updates; t_k not below 0.05",
)
