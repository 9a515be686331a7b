r"""MBMA (mostly ours): many actions per state: at some several are drawn, and each is compared with the state's value.

A(a) = V(s after a) - V(s), V the mean outcome of the leaves below;  4 actions at each of 2 points of a tree

Choices. The paper's actions beyond the first are played in a learnt dynamics model, with a critic at the end; texts
have no such model, and answers can be gone on with: these are branches of a tree, played to the end by the policy
itself, all of them trained. The model-free half alone: a stand-in. Its condition says when that pays: against as many
tokens spent on more states (`rollout.branches` against `rollout.trees`); in a bandit, a prompt with one action, it
never does at equal cost.
"""

from gxpo.algorithms.credit.node_value import node_value
from gxpo.parts.definition import Definition
from gxpo.sampling.rollouts.tree import Tree

mbma = Definition(
    name="mbma",
    doc=__doc__,
    title="On Many-Actions Policy Gradient",
    arxiv="2210.13011",
    authors="Nauman, Michal and Cygan, Marek",
    year=2023,
    evidence="reconstruction",
    keys={"credit": node_value, "credit.form": "edge", "rollout": Tree, "rollout.branches": 3},
    cost="14 leaves a prompt, their prefixes shared; a sampling call for every prefix length",
)
