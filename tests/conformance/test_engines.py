"""Rollouts and losses that training engines are compared on; the comparisons themselves are in tests/learning."""

from __future__ import annotations

import pytest
import torch

from gxpo.conformance.engines import METHODS, EngineResult, forest, losses


def test_eight_rollouts_with_forks_and_two_turns() -> None:
    rollouts = forest(32)
    assert rollouts.n_trajectories == 8 and rollouts.group == ["g0"] * 4 + ["g1"] * 4
    # t0, t1, t2: 4, 5, 6 tokens and 3 more; the fork: 2 of t1's and 4 of its own
    assert rollouts.lengths().tolist() == [7, 8, 9, 6] * 2
    shared = torch.bincount(rollouts.path_token)
    assert int((shared == 2).sum()) == 2 * 2 and int(shared.max()) == 2


def test_token_ids_stay_in_the_vocabulary() -> None:
    for vocabulary in (32, 500):
        token = forest(vocabulary).token
        assert int(token.min()) >= 2 and int(token.max()) < vocabulary
    assert torch.equal(forest(64).token, forest(64).token)


def test_losses_have_finite_gradients_that_differ() -> None:
    rollouts = forest(32)
    logprob = torch.full((rollouts.n_entries,), -1.0, dtype=torch.float64)
    gradients = {}
    for name, loss in losses(rollouts, logprob).items():
        x = logprob.clone().requires_grad_()
        (gradients[name],) = torch.autograd.grad(loss({"logprob": x, "reference": logprob}), x)
        assert bool(gradients[name].isfinite().all()) and bool((gradients[name] != 0).any()), name
    assert set(gradients) == set(METHODS)
    assert not torch.allclose(gradients["grpo"], gradients["gspo"])


@pytest.mark.parametrize(("error", "passed", "word"), [(1e-6, True, "ok "), (1e-5, True, "ok "), (2e-5, False, "NOT")])
def test_a_result_passes_up_to_its_tolerance(error: float, passed: bool, word: str) -> None:
    result = EngineResult("log-probs", error, 1e-5)
    assert result.passed is passed
    assert str(result) == f"{word} log-probs: {error:.2e} (at most 1e-05)"


def test_a_nan_does_not_pass() -> None:
    assert not EngineResult("log-probs", float("nan"), 1e-5).passed
