r"""E-GRPO: partial reward for wrong answers by the share of the solution's entities in the reasoning.

R = 1 if right; 0.3 * rate / (largest rate of the group) if wrong; 0 if wrong and cut at a limit;   A as in GRPO

Choices. As in the paper (eq. 1 to 5; 0.3 is the best of 0.1, 0.3 and 0.5). The largest rate is that of the group's
compared attempts, right ones included. Rates are component "entities" of your reward: the built-in reward of that name
with weight 0 (`scoring.weights: {correct: 1, entities: 0}`), for tasks whose info names `entities`, or a function of
your own.
The paper matches exact strings in the thoughts alone, the built-in reward in what the attempt says, case and spaces
aside. An error of format earns 0 there and is not known here. Attempts over a limit are in the paper's statistics but
not in its loss. It trains without KL, with a wider upper clip and groups of 8.
"""

from gxpo.environments.rewards.shape import Shape
from gxpo.parts.definition import Definition

e_grpo = Definition(
    name="e_grpo",
    doc=__doc__,
    title="Repurposing Synthetic Data for Fine-grained Search Agent Supervision",
    arxiv="2510.24694",
    authors="Zhao, Yida and Li, Kuan and Wu, Xixi and Zhang, Liwen and Zhang, Dingchu and Li, Baixuan and others",
    year=2025,
    evidence="paper",
    keys={"reward.shape.entity_match": Shape, "reward.shape.entity_match.function": "entity_match"},
    paper_defaults={"rollout.group_size": 8},
)
