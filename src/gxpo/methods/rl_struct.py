r"""RL-Struct: weighted hierarchy of rewards for JSON: it parses, has the keys, the types, the values.

r = .2 [parses] + .3 keys + .2 types + .3 values, each a share of the keys that are asked;   A as in GRPO

Choices. The weights are ours: the sources at hand give none. Keys and types come from the task's `info.schema` (JSON
Schema) where it has one, else from the reference. The paper's terms for a fence and for length are left out; text
around the JSON makes it unreadable. Additive: an answer that only parses earns .2, more than a right one with a missing
bracket.
"""

from gxpo.parts.definition import Definition

rl_struct = Definition(
    name="rl_struct",
    doc=__doc__,
    title="RL-Struct: A Lightweight Reinforcement Learning Framework for Reliable Structured Output in LLMs",
    arxiv="2512.00319",
    authors="Hu, Ruike and Wu, Shulei",
    year=2025,
    evidence="reconstruction",
    keys={
        "reward": "match",
        "scoring.options": {"match": {"metric": "json_schema", "pattern": None, "schema": "info.schema"}},
    },
)
