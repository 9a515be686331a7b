"""A solver that calls a sub-agent for every column of a sum, as a tool; the tiny model plays both.

The solver of 37+48= writes "7+8=" and stops; that is a call. The adder is asked 17+18=, a sum of two digits as the tiny
model knows them, and what it says less 20 is the reply, with the carry that the solver has asked for.
"""

import re
from collections.abc import Mapping

from gxpo.sampling.rollouts.graph import Call, Graph, Role, Texts

COLUMN = r"(\d\+\d(?:\+1)?)="


def adder_prompt(texts: Texts) -> str:
    """Write the prompt of the adder: the column's two digits, with a ten each."""
    p, q, *_ = re.findall(r"\d", texts["request"])
    return f"1{p}+1{q}="


def reply(texts: Texts) -> str:
    """Reply to the solver with the column's sum, or ? where the adder gives no number."""
    result = re.search(r"#(\d+)$", texts["adder"])
    carry = texts["request"].count("+") - 1
    return str(int(result[1]) - 20 + carry) if result else "?"


def column_reward(texts: Texts, scores: Mapping[str, float]) -> float:
    """Reward the adder: 1 for the right sum, whatever the solver makes of it."""
    return float(reply(texts) == str(sum(map(int, re.findall(r"\d", texts["request"])))))


team = Graph(
    (
        Role(
            "solver",
            running=True,
            answer="{solver}",
            stop=("=",),
            calls=(Call("adder", COLUMN, reply=reply, max_calls=2),),
        ),
    ),
    helpers=(Role("adder", adder_prompt, local=column_reward),),
)
alone = Graph((Role("solver", answer="{solver}"),))
