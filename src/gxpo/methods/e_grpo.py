r"""E-GRPO: a wrong answer earns by the entities of the solution that it came across.

R = 1 if right; 0.3 * rate / (largest rate of the group) if wrong; 0 if wrong and cut at a limit;   A as in GRPO

Choices. From the abstract and general knowledge: the share 0.3 and the division by the group's largest rate are
recollections. The largest rate is that of the group's compared attempts, right ones included. Rates are component
"entities" of your reward: the built-in reward of that name with weight 0 (`reward: {correct: 1, entities: 0}`), for
tasks whose info names `entities`, or a function of your own. An error of format is not known here and not punished.
"""

from gxpo.keys import Definition
from gxpo.rewards.entity_match import EntityMatch

e_grpo = Definition(
    name="e_grpo",
    title="Repurposing Synthetic Data for Fine-grained Search Agent Supervision",
    arxiv="2510.24694",
    authors="Zhao, Yida and Li, Kuan and Wu, Xixi and Zhang, Liwen and Zhang, Dingchu and Li, Baixuan and others",
    year=2025,
    idea="near misses are told from failures by the entities that they mention",
    formula="R = 1 if right, else 0.3 rate / max_g rate; A as GRPO",
    evidence="reconstruction",
    keys={"reward.shape.entity_match": EntityMatch},
    choices="0.3 and the division by the group's largest rate are recollections; no penalty for format",
)
