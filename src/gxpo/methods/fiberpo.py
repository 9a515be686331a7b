r"""FiberPO: trajectory mean and token residual of the log-ratio, each clipped separately.

a_i = mean_t log rho_{i,t};   r_{i,t} = exp(clip(a_i, +-0.2) + clip(log rho_{i,t} - a_i, +-0.2))
L = mean_i mean_t -A r

Choices. The residual is taken from the mean before that is clipped, as a decomposition into orthogonal levels says; the
unofficial code takes it from the clipped mean, so that what the base gate removed comes back through the other one.
Both gates are clips in log space, and there is no minimum with the free ratio. Two levels; those above (group, domain)
are not built.
"""

from gxpo.definition import Definition
from gxpo.objectives.ratio_trajectory import filtered, prefix_level
from gxpo.objectives.surrogate_clips import nested_clip

fiberpo = Definition(
    name="fiberpo",
    doc=__doc__,
    title="Fibration Policy Optimization",
    arxiv="2603.08239",
    authors="Li, Chang and Tsu, Tshihao and Zhang, Yaren and Xue, Chao and He, Xiaodong",
    year=2026,
    formula="L = mean_i mean_t -A exp(clip(a, d) + clip(log rho - a, e)), a = mean_t log rho, d = e = 0.2",
    evidence="secondary",
    keys={"objective.surrogate": nested_clip},
    refuses={"objective.ratio": ("sequence", "turn", filtered, prefix_level)},
)
