"""The default update."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gxpo.base.errors import ConfigError
from gxpo.forest.forest import Forest
from gxpo.learning.base import Epochs, deal
from gxpo.parts.protocols import StepInfo


class Recorder:
    def __init__(self) -> None:
        self.calls = []

    def step(self, forest, credit, weight, trajectories=None):
        self.calls.append(None if trajectories is None else trajectories.tolist())
        return StepInfo(empty=False, loss=float(len(self.calls)))


@given(st.lists(st.integers(0, 6), min_size=1, max_size=20), st.integers(1, 9))
def test_parts_are_whole_groups_and_hold_every_row_once(labels, minibatches):
    group = torch.unique(torch.tensor(labels), return_inverse=True)[1]
    parts = deal(group, minibatches)
    assert sorted(torch.cat(parts).tolist()) == list(range(len(labels)))
    owners = [set(group[part].tolist()) for part in parts]
    assert sum(len(o) for o in owners) == len(set(labels))
    assert len(parts) == min(minibatches, len(set(labels)))
    assert max(len(o) for o in owners) - min(len(o) for o in owners) <= 1


def test_each_trajectory_once_an_epoch():
    forest = Forest.from_completions([[2], [3], [4]], [[[5], [6]], [[7]], [[8], [9]]], [0] * 5)
    learner, zeros = Recorder(), torch.zeros(5)
    infos = Epochs(epochs=2, minibatches=2).run(forest, zeros, zeros, learner)
    assert learner.calls == [[0, 1, 2], [3, 4]] * 2
    assert [info.loss for info in infos] == [1.0, 2.0, 3.0, 4.0]
    learner = Recorder()
    Epochs().run(forest, zeros, zeros, learner)
    assert learner.calls == [None]


def test_refusals():
    with pytest.raises(ConfigError, match=r"update.minibatches is 0; it is 1 or more"):
        Epochs(minibatches=0)
