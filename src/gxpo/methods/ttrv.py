r"""TTRV: share of the group that gives an attempt's answer as reward, at test time, without labels.

r_i = |answers equal to answer i| / G;   A as in GRPO

Choices. The paper subtracts .75 times the normalised entropy of the group's answers. It is the same for all of a group,
so that any baseline of the group cancels it: A is the same with and without (see the errata), and it is left out. An
attempt without an answer earns 0 (fork: the share of those without). `scoring.options.majority_vote.pattern` says what
an answer is: "(.+)" on `shapes`, where docs/vision.md has runs.
"""

from gxpo.definition import Definition

ttrv = Definition(
    name="ttrv",
    doc=__doc__,
    title="TTRV: Test-Time Reinforcement Learning for Vision Language Models",
    arxiv="2510.06783",
    authors="Singh, Akshit and Marjit, Shyam and Lin, Wei and others",
    year=2025,
    evidence="secondary",
    keys={"reward": "majority_vote", "scoring.options": {"majority_vote": {"reward": "frequency"}}},
    paper_defaults={"rollout.group_size": 32},
)
