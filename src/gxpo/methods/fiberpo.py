r"""FiberPO: a trajectory's drift up and its drift down gated each, times the token's residual, clipped.

u_i = mean_t max(log rho_{i,t}, 0);   d_i = mean_t max(-log rho_{i,t}, 0);   l_{i,t} = log rho_{i,t}
log w_i = g(u_i, 0.55) - g(d_i, 0.45);   g(x, C) = x up to C, then (T_i + 1) C - T_i x, 0 from C (1 + 1 / T_i) on
log r_{i,t} = clip(l - u_i, +-e) + clip(d_i, +-e) where l >= 0, clip(l + d_i, +-e) - clip(u_i, +-e) below;   e 0.2
L = mean_i mean_t -A w_i r_{i,t}

Choices. From the technical report of the authors' model (JoyAI-LLM Flash, arXiv 2604.03044, section 3.3.1), which
states objective and gates in full and no widths: the budgets and e are ours, with budget up above budget down and e
below their sum as it recommends. Beyond a budget the gradient turns round and pulls the trajectory back; far beyond it
w_i is 1. Two levels: prompt groups and domains, which the method's own paper adds, are not built.
`objective.surrogate: nested_clip` clips the trajectory's mean log-ratio and the residual from it.
"""

from gxpo.algorithms.objectives.ratio_trajectory import filtered, prefix_level
from gxpo.algorithms.objectives.surrogate_clips import fiber_gate
from gxpo.parts.definition import Definition

fiberpo = Definition(
    name="fiberpo",
    doc=__doc__,
    title="Fibration Policy Optimization",
    arxiv="2603.08239",
    authors="Li, Chang and Tsu, Tshihao and Zhang, Yaren and Xue, Chao and He, Xiaodong",
    year=2026,
    formula="L = mean_i mean_t -A w_i r_t, w_i of the gated drifts up and down, r_t the clipped residual",
    evidence="paper",
    keys={"objective.surrogate": fiber_gate},
    refuses={"objective.ratio": ("sequence", "turn", filtered, prefix_level)},
)
