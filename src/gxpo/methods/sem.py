r"""SEM: a right answer counts only with a search where one is needed, and without one where none is.

r = r_outcome [(m > 0) = (n > 0)];   m calls of the attempt, n those that the task needs

Choices. A reconstruction from the abstract: a balanced set of questions that need search and that do not, which the
task's info tells apart (`needed_calls`, or the number of `gold_calls`). The paper's template asks for an answer before
the search; here whether a search is needed is not measured. Without such notes `reward.shape.tool_calls.reference:
group_min` takes a task for one that needs none where some attempt of the group is right without.
"""

from gxpo.environments.rewards.tool_calls import ToolCalls
from gxpo.parts.definition import Definition

sem = Definition(
    name="sem",
    doc=__doc__,
    title="SEM: Reinforcement Learning for Search-Efficient Large Language Models",
    arxiv="2505.07903",
    authors="Sha, Zeyang and Cui, Shiwen and Wang, Weiqiang",
    year=2025,
    formula="r = r_outcome [(m > 0) = (n > 0)]",
    evidence="reconstruction",
    keys={
        "reward.shape.tool_calls": ToolCalls,
        "reward.shape.tool_calls.shape": "zero_if_unneeded",
        "reward.shape.tool_calls.reference": "task",
    },
)
