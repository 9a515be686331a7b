r"""Tree-OPO: completions of tree-search prefixes; advantages by a quadratic program with prefix-order constraints.

a = argmin |a - (r - mean r)|^2 / 2   with sum a = 0, |a|^2 <= n, and a_i + 0.01 <= a_j for
  (i, j): i failed, j succeeded, prefix i is a proper prefix of prefix j
  (i, j): both failed at sibling prefixes, a success extends prefix i and none prefix j

Choices. From secondary notes; there is no code. `credit.how: expectation`, `optimistic` or `pessimistic` are the
heuristics, a_i = r_i - 0.5 V(prefix i), centred; 0.5 is a recollection. No division by the std, as recommended: it
would undo what prefixes of different difficulty say. The prefixes are a teacher's (`rollout.tree`: its rollouts);
without one the policy searches for them in every step. The second rule favours the branch that is not proven yet, for
the sake of exploration. Both lead from rows whose prefix some success extends to rows of which that is not so, so
constraints that go round in a circle do not come up.
"""

from gxpo.algorithms.credit.ordered import prefix_ordered
from gxpo.parts.definition import Definition
from gxpo.sampling.rollouts.prefixes import Prefixes

tree_opo = Definition(
    name="tree_opo",
    doc=__doc__,
    title="Tree-OPO: Off-policy Monte Carlo Tree-Guided Advantage Optimization for Multistep Reasoning",
    arxiv="2509.09284",
    authors="Huang, Bingning and Nguyen, Tu and Zimmer, Matthieu",
    year=2025,
    formula="a = projection of r - mean r on {sum a = 0, |a|^2 <= n, a_i + d <= a_j for ordered prefixes i, j}",
    evidence="secondary",
    keys={"credit": prefix_ordered, "rollout": Prefixes},
    cost="without a file, a search for prefixes in every step; a small quadratic program a group",
)
