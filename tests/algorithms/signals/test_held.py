"""Signals know their axes, and follow the trajectories that are selected."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import strategies

from gxpo.algorithms.signals import Signals
from gxpo.base.errors import MissingSignal
from gxpo.forest.forest import Forest

AXES = {"of_trajectories": "R", "of_steps": "S", "of_tokens": "T"}


def labelled(forest: Forest) -> Signals:
    """Signals that say which trajectory, step or token each row is about, in words that `select` keeps."""
    place = torch.arange(forest.n_tokens)
    values = {
        "of_trajectories": torch.arange(forest.n_trajectories),
        "of_steps": 1000 * forest.step_trajectory + forest.step_turn,
        "of_tokens": torch.stack([forest.token, place], 1),
        "of_entries": 1000 * forest.path_trajectory + forest.step_turn[forest.path_step],
        "a_number": 3.5,
    }
    return Signals.of(forest, values, AXES)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.data())
def test_each_signal_is_selected_on_its_own_axis(seed, data):
    forest = strategies.random_forest(seed, vocab=23, groups=2, max_turns=3)
    n = forest.n_trajectories
    rows = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=n, unique=True))
    held_labelled, sub = labelled(forest).select(forest, torch.tensor(rows)), forest.select(rows)
    assert held_labelled["of_trajectories"].tolist() == rows
    old = torch.tensor(rows)
    assert torch.equal(held_labelled["of_steps"], 1000 * old[sub.step_trajectory] + sub.step_turn)
    assert torch.equal(held_labelled["of_entries"], 1000 * old[sub.path_trajectory] + sub.step_turn[sub.path_step])
    assert torch.equal(held_labelled["of_tokens"][:, 0], sub.token) and held_labelled["a_number"] == 3.5
    assert torch.equal(forest.token[held_labelled["of_tokens"][:, 1]], sub.token)


def test_a_signal_of_the_wrong_length_is_refused_with_its_name():
    forest = strategies.random_forest(1, vocab=23, groups=2)
    wrong = Signals.of(forest, {"baseline": torch.zeros(forest.n_entries + 1)})
    with pytest.raises(ValueError, match="'baseline' has"):
        wrong.select(forest, torch.tensor([0]))


def test_a_missing_signal_says_what_it_would_be():
    with pytest.raises(MissingSignal, match="value head"):
        Signals()["value"]
    with pytest.raises(MissingSignal, match="no part of this method provides it"):
        Signals()["belief"]
