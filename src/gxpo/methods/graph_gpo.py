r"""GraphGPO: step-level advantage by shortest distance to success in the group's state graph, added to GRPO's.

d(s) = fewest steps from s to success in the union of the group's trajectories; largest + 1 where nothing leads there
R_t  = 10 * 0.1^d(s_{t+1})
A    = z_group(outcome) + z_state(R_t),  z(x) = (x - mean) / (std + 1e-6), ddof 1; z_state over the steps in one state

A step of a failed trajectory counts as much as the same step of a successful one.

Choices. The recipe's R_t; the paper's is 10 * 0.1^(d + 1), which is a tenth of it and the same after scaling. Steps are
compared with multiplicity, as in the recipe (verl-agent's, read in a fork of it). A^E over trajectories (the recipe:
over steps, `credit.unit: step`); a state visited once and a group of one have 0. Where no attempt succeeds all R_t are
equal, and this is GRPO. With `credit.add.graph.form: progress` R_t = 10 * 0.1^(d(s_{t+1}) - d(s_t) + 1).
"""

from gxpo.algorithms.credit import Relative
from gxpo.algorithms.credit.state_relative import StateRelative
from gxpo.parts.definition import Definition

graph_gpo = Definition(
    name="graph_gpo",
    doc=__doc__,
    title="Beyond Trajectory-Level Attribution: Graph-Based Credit Assignment for Agentic Reinforcement Learning",
    arxiv="2605.26684",
    authors="Cheng, Xin and He, Shuo and Feng, Lang and Xu, Haiyang and Yan, Ming and Feng, Lei and An, Bo",
    year=2026,
    formula="A = (R - mean_g) / std_g + (R_t - mean_state) / std_state, R_t = 10 * 0.1^d(s_{t+1})",
    evidence="reference-code",
    keys={
        "credit": Relative,
        "credit.add.graph": StateRelative,
        "credit.add.graph.value": "graph_return",
        "credit.add.graph.discount": 0.1,
    },
    code="zzj1111/alfworldauto@37aec781da7f377874516e22d7f32c1932215eb4 recipe/GraphGPO/core_graph.py "
    "recipe/GraphGPO/graphgpo_ray_trainer.py",
)
