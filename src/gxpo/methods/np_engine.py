r"""NP-Engine: answers to NP-hard problems are paid by their value in shares of a heuristic's.

r = v / v_heuristic, or v_heuristic / v where less is better; 0 where the answer is not feasible

Choices. Of the authors' code the evaluation was read (OliverLeeXZ/NP-Engine c105511); their training is not released.
The task `np_hard` has three of their ten kinds, in a short notation, and greedy heuristics; theirs solves some exactly.
A ratio above 1 is paid in full. The easy-to-hard curriculum is left out (`tasks.options.size`). Their validators return
True for an answer that is NOT valid.
"""

from gxpo.parts.definition import Definition

np_engine = Definition(
    name="np_engine",
    doc=__doc__,
    title="NP-Engine: Empowering Optimization Reasoning in Large Language Models with Verifiable Synthetic NP Problems",
    arxiv="2510.16476",
    authors="Li, Xiaozhe and Fang, Xinyu and Ding, Shengyuan and Li, Linyang and Duan, Haodong and Liu, Qingwen and "
    "Chen, Kai",
    year=2025,
    formula="r = v / v_heuristic, or v_heuristic / v where less is better; 0 where not feasible",
    evidence="reconstruction",
    keys={"scoring.weights": {"ratio": 1.0}},
)
