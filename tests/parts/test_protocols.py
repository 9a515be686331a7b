"""Values of the stages' protocols: sampling settings, completions, costs."""

from __future__ import annotations

import numpy as np
import pytest

from gxpo.parts import learning, protocols
from gxpo.parts.protocols import MISREAD, Budget, Completion, Sampling, SoftSampling


def test_support_is_truncated_by_top_k_or_top_p_above_temperature_zero():
    assert not Sampling().truncated_support
    assert Sampling(top_k=5).truncated_support and Sampling(top_p=0.9).truncated_support
    assert not Sampling(temperature=0.0, top_k=5, top_p=0.9).truncated_support
    assert not SoftSampling(soft_top_k=5).truncated_support  # of the tokens after the soft steps


def test_a_completion_within_its_room_is_the_same_object():
    completion = Completion([4, 5], [-1.0, -2.0], "stop")
    assert completion.truncate(2) is completion and completion.truncate(9) is completion


def test_a_completion_is_cut_with_its_columns():
    support = np.array([[4, 8], [5, -1], [6, 7]])
    completion = Completion([4, 5, 6], [-1.0, -2.0, -3.0], "stop", support, policy_version=1, versions=((1, 2), (2, 3)))
    cut = completion.truncate(2)
    assert (cut.tokens, cut.logprobs, cut.finish) == ([4, 5], [-1.0, -2.0], "length")
    assert cut.support is not None and cut.support.tolist() == [[4, 8], [5, -1]]
    assert (cut.policy_version, cut.versions) == (1, ((1, 2),))
    assert completion.tokens == [4, 5, 6]


def test_a_misread_completion_stays_misread_when_it_is_cut():
    assert Completion([4, 5], [-1.0, -2.0], MISREAD).truncate(1).finish == MISREAD


def test_cost_is_priced_per_million_of_each_count():
    budget = Budget(generated_tokens=2_000_000, rollouts=10, judge_tokens=500_000)
    assert budget.cost({"generated_tokens": 3.0, "judge_tokens": 4.0}) == 8.0
    assert budget.cost({}) == 0.0
    with pytest.raises(AttributeError):
        budget.cost({"tokens": 1.0})


def test_protocols_of_learning_are_the_same_objects():
    for name in ("Credit", "Learner", "Output", "PolicyTokens", "Signals", "StepInfo", "Term", "Update", "Weight"):
        assert getattr(protocols, name) is getattr(learning, name)
