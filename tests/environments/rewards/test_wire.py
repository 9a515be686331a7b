"""Values as text, and messages that are none."""

from __future__ import annotations

import math
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gxpo.environments.rewards.wire import DEEPEST, LARGEST, Forged, Line, Reader, Writer

ATOMS = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.complex_numbers(allow_nan=False)),
    *(st.binary(), st.text(st.characters(exclude_categories=()))),
)
KEYS = st.recursive(ATOMS, lambda x: st.tuples(x, x) | st.frozensets(x), max_leaves=4)
VALUES = st.recursive(
    ATOMS | KEYS, lambda x: st.lists(x) | st.tuples(x, x) | st.dictionaries(KEYS, x) | st.sets(KEYS), max_leaves=20
)


def nothing(*_):
    raise ValueError("there is nothing that is not plain")


def types(value):
    """The types of a value and of what is in it, in an order of their own."""
    inside = [*value, *value.values()] if isinstance(value, dict) else value
    held_inside = sorted(map(types, inside)) if isinstance(value, (dict, list, tuple, set, frozenset)) else ()
    return f"{type(value).__name__}({', '.join(held_inside)})"


@pytest.mark.slow
@given(VALUES)
def test_a_value_comes_back_with_its_types(value):
    back = Reader(Writer(nothing).text(value), nothing).value()
    assert back == value and types(back) == types(value)


def test_what_is_not_equal_to_itself_and_what_is_deep():
    assert math.isnan(Reader(Writer(nothing).text(math.nan), nothing).value())
    deep = value = []
    for _ in range(DEEPEST + 1):
        value.append([])
        value = value[0]
    with pytest.raises(ValueError, match="containers in each other"):
        Writer(nothing).text(deep)


@pytest.mark.parametrize(
    "text",
    ["", "q", "l9;N", "l-1;", "s5;ab", "e1;l0;", "d1;l0;N", "i", "iz;", "xos.system;s2;ls;", "xdecimal.Decimal;1;s1;x",
     "xbuiltins.eval;1;s1;1", "l1;" * (DEEPEST + 9) + "N", "f;", "bxx;", "pli;", "pqi1;", "r0;"],
)  # fmt: skip
def test_what_is_no_message_ends_the_line(text):
    (inbox, theirs), (their_inbox, outbox) = os.pipe(), os.pipe()
    line = Line(inbox, outbox, Writer(nothing), nothing)
    try:
        data = text.encode()
        os.write(theirs, len(data).to_bytes(8, "big") + data)
        with pytest.raises(Forged):
            line.ask("names", [])
        with pytest.raises(EOFError, match="the program is gone"):  # nothing is believed from here on
            line.ask("names", [])
    finally:
        for number in (inbox, theirs, their_inbox, outbox):
            os.close(number)


def test_a_message_that_is_too_long_is_not_waited_for():
    (inbox, theirs), outbox = os.pipe(), os.open(os.devnull, os.O_WRONLY)
    try:
        os.write(theirs, (LARGEST + 1).to_bytes(8, "big"))
        with pytest.raises(Forged, match="a message of"):
            Line(inbox, outbox, Writer(nothing), nothing).ask("names")
    finally:
        for number in (inbox, theirs, outbox):
            os.close(number)
