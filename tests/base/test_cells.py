"""Cells of rows by dotted names, and what is said of a name that no row has."""

from __future__ import annotations

import pytest

from gxpo.base.cells import cell, has_cell, lacking

ROW = {"reward_model": {"ground_truth": "7", "all": ["7", "VII"]}, "prompt": "x", "none": None, "n": 3}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("prompt", "x"),
        ("reward_model.ground_truth", "7"),
        ("reward_model.all", ["7", "VII"]),
        ("reward_model.all.1", "VII"),
        ("reward_model.all.2", "absent"),
        ("reward_model.all.-1", "absent"),
        ("prompt.0", "absent"),
        ("n.real", "absent"),
        ("none", None),
        ("none.x", "absent"),
        ("", "absent"),
    ],
)
def test_cells_are_read_through_mappings_and_lists(name: str, value: object):
    assert cell(ROW, name, "absent") == value
    assert has_cell(ROW, name) == (value != "absent")


def test_the_longest_key_wins_and_shorter_ones_are_tried_next():
    row = {"a.b": {"c": 1}, "a": {"b": {"c": 2, "d": 3}, "b.d": 4}}
    assert cell(row, "a.b.c") == 1
    assert cell(row, "a.b.d") == 4  # "a.b" has no d; within "a" the key "b.d" is longer than "b"


def test_a_close_name_is_proposed_where_it_is():
    assert lacking([ROW], "promt") == "; did you mean 'prompt'?"
    assert lacking([{}, ROW], "reward_model.ground_trut") == "; did you mean 'reward_model.ground_truth'?"


def test_without_a_close_name_all_of_the_place_are_listed():
    assert lacking([ROW], "reward_model.zzz") == "; 'reward_model' has ground_truth, all"
    assert lacking([{"prompt": 1}, {"answer": 2}], "zzz") == "; there is prompt, answer"
    assert lacking([], "zzz") == "; there is none"


@pytest.mark.parametrize(("name", "kind"), [("prompt.x", "a text"), ("reward_model.all.x", "a list"), ("n.x", "int")])
def test_a_cell_without_names_is_described(name: str, kind: str):
    assert lacking([ROW], name) == f"; {name.removesuffix('.x')!r} is {kind}, without names in it"


def test_many_and_long_names_are_cut():
    rows = [{f"{i:02}" + "c" * 50: 1 for i in range(42)}]
    names, _, more = lacking(rows, "zzz").removeprefix("; there is ").partition(" and ")
    assert names.split(", ") == [f"{i:02}" + "c" * 38 for i in range(40)] and more == "2 more"
