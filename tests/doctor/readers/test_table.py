"""`Table`: figures of rows, steps, columns by key, flat settings."""

import math

import pytest

from gxpo.doctor.readers.table import Table, figures, flat, number, step_of


@pytest.mark.parametrize(
    ("value", "expected"),
    [(1, 1.0), (0.5, 0.5), ("0.5", 0.5), ("1e-6", 1e-6), (True, None), ("x", None), ([1], None), ("1_000", None)],
)
def test_figures_are_numbers_and_texts_of_numbers(value, expected):
    assert number(value) == expected


def test_null_is_a_figure_that_is_not_finite():
    assert all(math.isnan(number(v)) for v in (None, "null", "None", "nan"))
    assert number(10**400) is None


def test_a_step_is_the_first_key_that_has_one():
    assert step_of({"_step": 9, "global_step": 3}) == (3.0, "global_step")
    assert step_of({"global_step/max_steps": "5/100"}) == (5.0, "global_step/max_steps")
    assert step_of({"step": float("nan"), "iter": 2}) == (2.0, "iter")
    assert step_of({"reward": 1.0}) == (None, None)


def test_a_row_keeps_its_figures_without_the_step():
    assert figures({"step": 3, "reward": "0.5", "ok": True, "note": "x", "more": {"a": 1}}, leave="step") == {
        "reward": 0.5
    }


def test_nested_settings_become_flat():
    assert flat({"a": {"b": 1, "c": {"d": [2]}}, "e": None}) == {"a.b": 1, "a.c.d": [2], "e": None}
    assert flat(3) == {} and flat({}, "x") == {}
    deep = {"k": 1}
    for _ in range(20):
        deep = {"k": deep}
    assert flat(deep) == {}


def test_columns_join_the_keys_that_trackers_wrote_in_two_ways():
    rows = [(1.0, {"train/reward": 0.25, "kl": 0.0}), (2.0, {"reward": 0.5})]
    assert Table("rows", rows=rows).columns == {"reward": ([1.0, 2.0], [0.25, 0.5]), "kl": ([1.0], [0.0])}
