"""What is read is bounded, and what is written is read back exactly."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gxpo.base import yamltext
from gxpo.base.errors import ConfigError

LOOKS_LIKE = [
    "yes",
    "null",
    "~",
    "1e5",
    "0x1f",
    "1_000",
    "2001-01-01",
    ".5",
    "=",
    "<<",
    "- a",
    "a: b",
    "a:",
    "#x",
    " a",
]
BREAKS = [
    "a\x85b",
    "a\u2028b",
    "\x1b[0m",
    "a\n",
    "\r\n",
    "\t",
    "\x00",
    "\ufeffa",
    "\x7f",
    "\\",
    '"',
    "'",
    "%a",
    "[",
    "}",
]
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    [*LOOKS_LIKE, *BREAKS, "long " * 1000, "x" * 2000]
)
LEAF = TEXT | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.booleans() | st.none()
VALUE = st.recursive(LEAF, lambda x: st.lists(x, max_size=3) | st.dictionaries(TEXT, x, max_size=3), max_leaves=6)


@given(VALUE, TEXT)
@example([LOOKS_LIKE, BREAKS, dict.fromkeys([*LOOKS_LIKE, *BREAKS], 1.0)], "\n# x: 1")
def test_what_is_written_is_read_back(value, comment):
    document = {"seed": 1, "chat.system": value, "last": "end"}
    text = yamltext.dump(document, {"chat.system": comment, "last": "default"})
    # 1, 1.0 and True are equal, and are not the same setting
    assert repr(yamltext.plain(yamltext.load(text, "f"), "f")) == repr(document)
    assert len(text.splitlines()) == 3


BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]\n" for old, new in zip("abcdefg", "bcdefgh", strict=True)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BOMB, r"^f:5: more than 20,000 values"),
        ("a: &a [*a]", r"^f:1: a refers to itself"),
        ("a: 1\nb: " + "[" * 5000, r"^f:2: lists and mappings are nested more than 32 deep"),
        ("a: " + "9" * 5000, r"^f: a value can't be read: .*5000 digits"),
        ("a: 0x" + "f" * 20, r"^f: an integer has more than 64 bits"),
        ("a: 2001-99-99", r"^f: a value can't be read: month"),
        ("a: 2001-01-01", r"^f: a setting is no date: put a text into quotes"),
        ("a: !!binary aGk=", r"^f: a setting is no bytes"),
        ("a: !own x", r"^f: a setting is no TaggedScalar"),
        ("a: !!int x", r"^f: a value can't be read: invalid literal"),
        ('a: "\\ud800"', r"^f: '\\ud800' is not valid Unicode"),
        ('{"\\udc00": 1}', r"^f: '\\udc00' is not valid Unicode"),
    ],
)
def test_what_no_setting_can_be_is_one_line(text, message):
    with pytest.raises(ConfigError, match=message) as caught:
        yamltext.plain(yamltext.load(text, "f"), "f")
    assert "\n" not in str(caught.value)


def test_aliases_are_written_out():
    assert yamltext.plain(yamltext.load("a: &x [1, true]\nb: *x\nc: {<<: {d: &y true}, e: *y}", "f"), "f") == {
        "a": [1, True],
        "b": [1, True],
        "c": {"d": True, "e": True},
    }


def test_a_list_that_holds_itself():
    endless = []
    endless.append(endless)
    with pytest.raises(ConfigError, match="nested more than 32 deep"):
        yamltext.plain(endless, "f")
