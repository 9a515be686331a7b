"""Where a pattern begins: by characters, by tokens of several, over turns."""

from __future__ import annotations

import math
import re
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gxpo.algorithms.signals.texts import first_match, match_place
from gxpo.base.errors import ConfigError
from gxpo.forest.forest import Forest
from gxpo.parts.definition import kind_of

FirstMatch = kind_of(first_match)

PIECES = ["", "a", "b", "ab", "<co", "de>", "x<code>y", "``", "`python"]


def decode(ids):
    return "".join(PIECES[i] for i in ids)


def test_worked() -> None:
    default = re.compile(FirstMatch().pattern)
    assert match_place([1, 2, 4, 5, 6], default, decode) == 2.0  # "<co" brings the first character
    assert match_place([6], default, decode) == 0.0 and match_place([3, 7, 8], default, decode) == 1.0
    assert math.isnan(match_place([1, 2, 3], default, decode)) and math.isnan(match_place([], default, decode))
    assert match_place([1, 2], re.compile("$"), decode) == 1.0  # after the last character: the last token


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 6), max_size=8), st.sampled_from(["b", "ba", "<code>", "e", "ab"]))
def test_equals_a_loop(tokens, pattern):
    text = decode(tokens)
    at = text.find(pattern)
    wanted, shown = math.nan, 0
    for n, token in enumerate(tokens if at >= 0 else []):
        shown += len(PIECES[token])
        if shown > at:
            wanted = float(n)
            break
    assert match_place(tokens, re.compile(pattern), decode) == pytest.approx(wanted, nan_ok=True)


def test_of_a_forest_turns_follow_each_other() -> None:
    def record(name, *actions):
        turns = [{"observation": [6], "action": list(a), "logprob": [-1.0] * len(a)} for a in actions]
        return {"schema": "gxpo.rollouts/1", "group": "g", "id": name, "prompt": [6], "reward": 1.0, "turns": turns}

    forest = Forest.from_records([record("t0", [1, 2], [3, 6]), record("t1", [1, 1]), record("t2", [6, 6])])
    part = FirstMatch()
    found = part.compute(forest, {}, SimpleNamespace(decode=decode))["first_use"]
    assert found.tolist() == pytest.approx([3.0, math.nan, 0.0], nan_ok=True)  # prompts and observations do not count
    assert part.axes == {"first_use": "R"}
    with pytest.raises(ConfigError, match="regular expression"):
        FirstMatch(pattern="(")
