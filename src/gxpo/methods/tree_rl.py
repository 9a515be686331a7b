r"""TreeRL: tree search branched at high-surprisal tokens; process reward from global and local node advantages.

V(s) = mean outcome of the leaves below node s;  GA = V(s) - V(root), LA = V(s) - V(parent);
A(token of s) = (GA + LA) / sqrt(leaves below s);  6 trees, each branching twice at the 2 tokens of largest -log p.

Choices. The paper's formula; `credit.form: released` is what the authors' script runs (`--use_weighted_value
--weighted_value_style sqrt --use_state_value_reward`, nothing centred): leaves scored leave-one-out, each node's value
divided by the root of its leaves before the difference to its parent is taken, 2 V(s) / sqrt(n_s) - V(p) / sqrt(n_p);
a node that changed nothing has its predecessor's difference. The script trains 16 of the 30 leaves, has values from all
and counts the 16 below the root sign; here all are trained (`rollout.keep` drops leaves before values are made); it
sets the reward of repetitive answers to -1. The tokens of largest -log p are taken, each once; temperature 1.2 and the
learning rate are under `tree_rl@paper`. TreePO, which averages a leaf's advantages over the groups below all its
ancestors, is `tree_po`.
"""

from gxpo.algorithms.credit.node_value import node_value
from gxpo.parts.definition import Definition
from gxpo.sampling.rollouts.tree import Tree

tree_rl = Definition(
    name="tree_rl",
    doc=__doc__,
    title="TreeRL: LLM Reinforcement Learning with On-Policy Tree Search",
    arxiv="2506.11902",
    authors="Hou, Zhenyu and Hu, Ziniu and Li, Yujiang and Lu, Rui and Tang, Jie and Dong, Yuxiao",
    year=2025,
    formula="A(s) = (V(s) - V(root) + V(s) - V(parent)) / sqrt(leaves(s)), V the mean outcome of the leaves below",
    evidence="reference-code",
    code=(
        "THUDM/TreeRL@f0edbea6f2f6392c46d297f83fb4929a9524266e scripts/treerl-qw14b.sh train_reinforce_ray.py "
        "openrlhf/trainer/ppo_utils/tree_node.py openrlhf/trainer/ppo_utils/parallel_mcts.py"
    ),
    keys={
        "credit": node_value,
        "rollout": Tree,
        "rollout.where": "surprisal",
        "rollout.trees": 6,
        "rollout.branches": 2,
    },
    paper_defaults={"sampling.temperature": 1.2, "optim.lr": 1.5e-6},
    cost="30 leaves a prompt, their prefixes shared; a sampling call for every prefix length",
)
