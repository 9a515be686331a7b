r"""RLSP, a trap: a bonus for length that diverges at short answers, so that a long wrong one beats a short right one.

r += -1000 / |o| - 0.5 [no \boxed{}]

A right answer of 100 tokens has -9, one of 1,000 has 0, a wrong one of 4,000 has -0.25: kept to be recognised, not to
be used. Compared within a group, what is rewarded is length until answers are long.

Choices. The code's `orm_server` with --length_penalty 1000; there |o| are the tokens before the box, and exceptions
score 0. Its second signal, a language model's judgement of the effort, is left out.
"""

from gxpo.environments.rewards.feature import Feature
from gxpo.environments.rewards.length import Length
from gxpo.parts.definition import Definition

rlsp = Definition(
    name="rlsp",
    doc=__doc__,
    title="On the Emergence of Thinking in LLMs I: Searching for the Right Intuition",
    arxiv="2502.06773",
    authors="Ye, Guanghao and Pham, Khiem Duc and Zhang, Xinzhi and Gopi, Sivakanth and Peng, Baolin and Li, Beibin "
    "and Kulkarni, Janardhan and Inan, Huseyin A.",
    year=2025,
    evidence="reference-code",
    keys={
        "reward.add.length": Length,
        "reward.add.length.shape": "inverse",
        "reward.add.length.coef": 1000.0,
        "reward.add.length.of": "all",
        "reward.add.unboxed": Feature,
        "reward.add.unboxed.pattern": r"\A(?!.*boxed\{)",
        "reward.add.unboxed.coef": -0.5,
    },
    code="GuanghaoYe/Emergence-of-Thinking@a36ba6c8dc95f1e082d8d5a38cfcdb6357c1cde9 openrlhf/cli/orm_server.py",
)
