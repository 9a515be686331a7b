"""Keyed uniforms."""

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gxpo.parts.protocols import StreamKey
from gxpo.sampling.engines.decode import uniforms

KEYS = st.builds(
    StreamKey,
    seed=st.integers(-(2**40), 2**40),
    step=st.integers(0, 10**6),
    task=st.text(max_size=8),
    attempt=st.integers(0, 64),
    path=st.lists(st.integers(0, 9), max_size=3).map(tuple),
    turn=st.integers(0, 9),
)


@settings(max_examples=50, deadline=None)
@given(st.lists(KEYS, min_size=1, max_size=5), st.integers(1, 20), st.integers(0, 10))
def test_a_row_depends_on_its_key_alone(keys, length, more):
    together = uniforms(keys, length)
    for row, key in zip(together, keys, strict=True):
        assert (uniforms([key], length + more)[0, :length] == row).all()
    assert together.dtype == np.float64 and (together >= 0).all() and (together < 1).all()


def test_every_field_of_the_key_names_another_stream():
    base = {"seed": 0, "step": 0, "task": "a", "attempt": 0, "path": (), "turn": 0}
    changes = [
        {},
        {"seed": 1},
        {"step": 1},
        {"task": "b"},
        {"attempt": 1},
        {"path": (0,)},
        {"path": (0, 0)},
        {"turn": 1},
    ]
    rows = uniforms([StreamKey(**{**base, **change}) for change in changes], 4)
    for a, b in itertools.combinations(rows, 2):
        assert not (a == b).any()


def test_members_of_a_group_draw_different_numbers():
    # T35: one seed for the whole group would make its members copies of each other
    rows = uniforms([StreamKey(seed=0, step=0, task="t", attempt=i) for i in range(64)], 1)
    assert len(set(rows[:, 0])) == 64


def test_streams_are_the_same_on_every_machine():
    # recorded once; a change here changes every run
    row = uniforms([StreamKey(seed=7, step=3, task="gsm8k/17", attempt=2, path=(1, 0), turn=4)], 3)[0]
    assert row.tolist() == RECORDED


def test_many_streams_together_are_uniform():
    values = np.sort(uniforms([StreamKey(0, 0, "t", i) for i in range(2000)], 5).reshape(-1))
    grid = (np.arange(values.size) + 0.5) / values.size
    assert abs(values - grid).max() < 1.63 / np.sqrt(values.size)  # Kolmogorov's bound at 1 per cent


RECORDED = [0.2643139893316775, 0.16797051523419038, 0.5295954909838224]
