r"""GiGPO: trajectory-level group advantage plus step-level advantage among steps from the same (anchor) state.

A^E = (R_i - mean_g R) / (std_g R + eps)            over trajectories (eq. 3)
A^S = (G_t - mean_s G) / (std_s G + eps)            over the steps of the group in the same state s (eq. 7)
A   = A^E + 1.0 A^S, the same for every token of the step; G_t the return with discount 0.95 (eq. 5)

Choices. Both levels with std, ddof 1, eps 1e-6, as in the reference's ALFWorld scripts (its yaml default is the mean
alone: `credit.scale: none`). A^E is over trajectories, as in the paper's eq. 3 and in the authors' later repository,
which is the one named; their first, verl-agent, takes it over steps, so that long trajectories weigh more
(`credit.unit: step`). States visited once, and groups of one, have 0 (the reference keeps a lone trajectory's raw
score: `credit.singleton: raw`). States are equal where their ids are; `credit.add.state.state: observation` goes by
texts, `credit.add.state.similar: 0.95` by their likeness, `credit.add.state.history` by the states before as well.
"""

from gxpo.algorithms.credit import Relative
from gxpo.algorithms.credit.state_relative import StateRelative
from gxpo.parts.definition import Definition

gigpo = Definition(
    name="gigpo",
    doc=__doc__,
    title="Group-in-Group Policy Optimization for LLM Agent Training",
    arxiv="2505.10978",
    authors="Feng, Lang and Xue, Zhenghai and Liu, Tingcong and An, Bo",
    year=2025,
    formula="A = (R - mean_g) / std_g + w (G_t - mean_state) / std_state, w = 1, discount 0.95",
    evidence="reference-code",
    keys={"credit": Relative, "credit.add.state": StateRelative},
    paper_defaults={"objective.kl.coef": 0.01, "rollout.group_size": 8, "optim.lr": 1e-6},
    code="langfengQ/DrMAS@3b556f2c0373fe23d6b637cbd3673c076713aebe gigpo/core_gigpo.py",
)
