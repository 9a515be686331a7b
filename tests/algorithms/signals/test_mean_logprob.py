"""The mean over the vocabulary of the policy's log-probs, before anything moves."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import torch
from tests.learning.llamas import clean_llama, random_forest

from gxpo.algorithms.signals.policy_outputs import mean_logprob
from gxpo.learning.torch import TorchLearner
from gxpo.parts.definition import kind_of

MeanLogprob = kind_of(mean_logprob)


def test_it_is_what_the_learner_says_under_that_name():
    forest, asked = random_forest(3), []
    said = torch.linspace(-9.0, -7.0, forest.n_entries, dtype=torch.float64)

    def outputs(given: Any, names: tuple[str, ...]) -> dict[str, torch.Tensor]:
        asked.append((given, names))
        return {"mean_logprob": said}

    tools: Any = SimpleNamespace(learner=SimpleNamespace(outputs=outputs))
    found = MeanLogprob().compute(forest, {}, tools)
    assert set(found) == set(MeanLogprob().provides) == {"start_mean_logprob"}
    assert torch.equal(found["start_mean_logprob"], said)
    assert len(asked) == 1 and asked[0][0] is forest and asked[0][1] == ("mean_logprob",)


def test_of_a_model_it_is_below_that_of_the_uniform_distribution():
    forest = random_forest(4)
    tools: Any = SimpleNamespace(learner=TorchLearner(clean_llama(vocab_size=64), lr=0.0))
    found = MeanLogprob().compute(forest, {}, tools)["start_mean_logprob"]
    assert found.shape == (forest.n_entries,) and bool((found < -math.log(64)).all())
