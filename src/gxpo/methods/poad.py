r"""POAD: action decomposition: GAE over the tokens of an action, discounted between actions only.

inside an action:  delta_j = V_{j+1} - V_j,               A_j = delta_j + lambda A_{j+1}
its last token:    delta = r + gamma V(next action) - V,   A = delta + gamma lambda A(next action)

The optimal policy over tokens is then that over actions. Discounting inside too (NTPO, the paper's contrast) is
`credit.discount: 0.95`; one value an action (TWOSOME) `gae_turn`; gamma 1 is GAE over tokens.

Choices. gamma 0.95, lambda 0.95 as in the released code, which also whitens advantages before the update (population
std, over a mini-batch's tokens whose advantage is not 0) and has an entropy coefficient of 0.01: both in `poad@paper`.
The critic is a head on the policy's body, there a network of its own.
"""

from gxpo.algorithms.credit.gae import Gae
from gxpo.algorithms.objectives.value import ValueRegression
from gxpo.parts.definition import Definition

poad = Definition(
    name="poad",
    doc=__doc__,
    title="Reinforcing Language Agents via Policy Optimization with Action Decomposition",
    arxiv="2405.15821",
    authors="Wen, Muning and Wan, Ziyu and Zhang, Weinan and Wang, Jun and Wen, Ying",
    year=2024,
    formula="A_j = V_{j+1} - V_j + l A_{j+1} inside an action; r + g V' - V + g l A' at its last token",
    evidence="reference-code",
    keys={
        "credit": Gae,
        "credit.turn_discount": 0.95,
        "credit.lam": 0.95,
        "objective.add.value": ValueRegression,
    },
    paper_defaults={"credit.whiten": "token", "objective.entropy.coef": 0.01},
    cost="a forward pass for the values at the start of the step; one vector of parameters",
    code="morning9393/ADRL@5ec1aa5450d150906455056c2a6718fcaeb2d12b mappo/utils/language_buffer.py mappo/config.py "
    "mappo/trainers/llm_trainer_tppo.py",
)
