r"""Tree-GRPO: tree rollouts; advantages normalised within the tree and over all trees of the prompt.

A_i = z_prompt(R_i) + z_tree(R_i),  z(x) = (x - mean) / (std + 1e-6), one degree of freedom; the same for every token of
the leaf's whole path, inherited ones included, so a token that m leaves share is trained with the sum of m credits.
M = 2 trees, each a chain and then N = 2 branches at points drawn uniformly among the prompt and the ends of steps.

Choices. A tree of one leaf adds 0 (the reference adds its raw reward). A step is a turn, as in the paper, where the
task has an environment; the answer to a prompt has lines instead (`rollout.delimiter`). A branch's environment is
restored, or its actions are replayed. `rollout.token_budget` and `rollout.call_budget` bound a prompt's tokens and
calls; the paper compares at equal budgets, its code has no such bound. The paper's KL coefficient is 0.001:
`tree_grpo@paper`.
"""

from gxpo.algorithms.credit import Relative
from gxpo.parts.definition import Definition
from gxpo.sampling.rollouts.tree import Tree

tree_grpo = Definition(
    name="tree_grpo",
    doc=__doc__,
    title="Tree Search for LLM Agent Reinforcement Learning",
    arxiv="2509.21240",
    authors="Ji, Yuxiang and Ma, Ziyu and Wang, Yong and Chen, Guanhua and Chu, Xiangxiang and Wu, Liaoni",
    year=2025,
    formula="A = z_prompt(R) + z_tree(R) of the leaf, on its whole path",
    evidence="reference-code",
    keys={
        "credit": Relative,
        "credit.add.tree": Relative,
        "credit.add.tree.among": ("info.tree",),
        "rollout": Tree,
    },
    paper_defaults={"objective.kl.coef": 1e-3},
    cost="fewer generated tokens an attempt: prefixes are shared; a sampling call for every prefix length",
    code="AMAP-ML/Tree-GRPO@90b170995d996d772d68117e0c7bd0b8fe00d393 verl/trainer/ppo/ray_trainer_ts.py "
    "verl/trainer/ppo/core_algos.py search_r1/llm_agent/tree_node.py",
)
