r"""TreePO: leaf advantages averaged over the subtrees of all ancestors, weighted by subtree size.

A_i = sum_d |G_d| (R_i - mean over G_d) / sum_d |G_d|, G_d the leaves below its d-th ancestor, the prompt's first;
then (A - mean) / sqrt(var + 1e-8) over the tokens of the batch; the same for all tokens of the leaf's path

Choices. As the authors' code at its defaults: weights by size, groups of equal outcomes counted (`credit.drop_equal`);
their training script asks for the plain mean (`tree_po@paper`, `credit.weight: equal`). An ancestor counts once however
many segments lie before the next branch; in the code every segment does. Its trees are of segments of a fixed length
and branch by budget; here branches leave at ends of steps, two rounds of them, so that there are ancestors of two
depths.
"""

from gxpo.algorithms.credit.ancestor_groups import by_ancestors
from gxpo.parts.definition import Definition
from gxpo.sampling.rollouts.tree import Tree

tree_po = Definition(
    name="tree_po",
    doc=__doc__,
    title="TreePO: Bridging the Gap of Policy Optimization and Efficacy and Inference Efficiency with Heuristic "
    "Tree-based Modeling",
    arxiv="2508.17445",
    authors="Li, Yizhi and Gu, Qingshui and Wen, Zhoufutu and Li, Ziniu and Xing, Tianshun and others",
    year=2025,
    formula="A = whiten(sum_d |G_d| (R - mean_{G_d}) / sum_d |G_d|) over the subtrees d that the leaf is in",
    evidence="reference-code",
    keys={"credit": by_ancestors, "rollout": Tree, "rollout.rounds": 2},
    paper_defaults={"credit.weight": "equal"},
    cost="fewer generated tokens an attempt: prefixes are shared; a sampling call for every prefix length",
    code="multimodal-art-projection/TreePO@f05552394e734ea2838cf9e3b8191f5093319dcf verl/trainer/ppo/core_algos.py "
    "recipe/treepo/run_treepo_train.sh",
)
