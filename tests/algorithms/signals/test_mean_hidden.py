"""The policy's mean hidden state of each trajectory's actions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.learning.llamas import clean_llama, random_forest

from gxpo.algorithms.signals import hidden_states as module
from gxpo.algorithms.signals.hidden_states import mean_hidden
from gxpo.forest.forest import Forest
from gxpo.learning.torch import TorchLearner
from gxpo.parts.definition import kind_of

MeanHidden = kind_of(mean_hidden)

LEARNER = TorchLearner(clean_llama(), lr=0.0)


def computed(forest: Forest, **settings_: Any) -> torch.Tensor:
    tools: Any = SimpleNamespace(learner=LEARNER)
    return MeanHidden(**settings_).compute(forest, {}, tools)["embedding"]


@settings(max_examples=10)
@given(st.integers(0, 10**6))
def test_it_is_the_mean_over_each_trajectorys_actions(seed):
    forest = random_forest(seed)
    hidden, found = LEARNER.hidden(forest).double(), computed(forest)
    assert found.shape == (forest.n_trajectories, 32) and found.dtype == torch.float64
    for r in range(forest.n_trajectories):
        tokens = forest.path_token[forest.path_of(r)].tolist()
        mean = sum((hidden[t] for t in tokens), torch.zeros(32, dtype=torch.float64)) / max(len(tokens), 1)
        assert torch.allclose(found[r], mean, atol=1e-12)


def test_it_does_not_depend_on_how_trajectories_are_stored():
    forest = random_forest(7)
    assert torch.allclose(computed(forest.flatten()), computed(forest), atol=1e-6)  # the learner gives float32
    assert not torch.allclose(computed(forest, layer=1), computed(forest), atol=1e-2)


def test_chunks_change_nothing(monkeypatch):
    forest = random_forest(3)
    hidden = torch.randn(forest.n_tokens, 5, generator=torch.Generator().manual_seed(0))
    whole = mean_hidden(forest, hidden)
    monkeypatch.setattr(module, "CHUNK", 2)
    assert torch.allclose(mean_hidden(forest, hidden), whole, atol=1e-14)
    assert mean_hidden(Forest.from_records([]), torch.zeros(0, 5)).shape == (0, 5)
