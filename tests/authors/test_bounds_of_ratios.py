"""PPO's dual clip and TIS against what their authors' code computes, one token at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch

import gxpo
from gxpo.forest.forest import Forest

SAMPLER = [-0.6, -2.5, -2.0, -0.2, -0.7, -1.1]
OLD = [-0.5, -1.0, -2.0, -0.3, -0.7, -1.3]
NEW = [-0.2, -1.6, -0.7, -0.1, -2.4, -1.3]
CREDIT = [1.0, 1.0, -0.5, -0.5, -0.5, 2.0]  # answers of two, three and one tokens


def of_method(spec: str, **overrides: object) -> tuple[float, list[float]]:
    logprobs = [SAMPLER[:2], SAMPLER[2:5], SAMPLER[5:]]
    forest = Forest.from_completions([[1]], [[[2, 3], [4, 5, 6], [7]]], [1.0, 0.0, 1.0], logprobs=[logprobs])
    new = torch.tensor(NEW, dtype=torch.float64, requires_grad=True)
    policy = gxpo.PolicyTokens(
        new, torch.tensor(SAMPLER, dtype=torch.float64), proximal_logprob=torch.tensor(OLD, dtype=torch.float64)
    )
    method = gxpo.method(spec, {f"objective.{k}": v for k, v in overrides.items()})
    value = method.loss(forest, policy, advantages=torch.tensor(CREDIT, dtype=torch.float64)).value
    (slope,) = torch.autograd.grad(value, new)
    return float(value.detach()), slope.tolist()


def by_hand(loss: Callable[[int, float], float]) -> tuple[float, list[float]]:
    """The mean over tokens of `loss` of token i at a log-prob, and its slope by differences."""
    h = 1e-6
    value = sum(loss(i, x) for i, x in enumerate(NEW)) / 6
    return value, [(loss(i, x + h) - loss(i, x - h)) / (2 * h) / 6 for i, x in enumerate(NEW)]


def agree(found: tuple[float, Sequence[float]], expected: tuple[float, Sequence[float]]) -> None:
    assert found[0] == pytest.approx(expected[0], abs=1e-9)
    assert found[1] == pytest.approx(expected[1], abs=1e-8)


def test_the_dual_clip_of_honor_of_kings() -> None:
    """tencent-ailab/hok_env@c6e0029 aiarena/1v1/common/algorithm_torch.py, lines 529-544: the ratio is held in [0, 3],
    whatever the sign of A, for the first argument of the minimum, in [.8, 1.2] for the second; a mean over frames."""

    def loss(i: int, logprob: float) -> float:
        ratio, a = math.exp(logprob - OLD[i]), CREDIT[i]
        return -min(min(max(ratio, 0.0), 3.0) * a, min(max(ratio, 0.8), 1.2) * a)

    expected = by_hand(loss)
    agree(of_method("ppo", aggregate="token_mean"), expected)
    assert expected[1][2] == 0.0  # A < 0, ratio e^1.3 = 3.67
    assert loss(2, NEW[2]) == 1.5


def test_truncated_importance_sampling() -> None:
    """yaof20/verl@1e41334 verl/trainer/ppo/core_algos.py, lines 870-899: the clipped loss times min(old / sampler,
    cap), then agg_loss; recipe/dapo/run_dapo_qwen2.5_32b_tis.sh: cap 2, token-mean, clip .2 and .28, c 10."""

    def loss(i: int, logprob: float) -> float:
        ratio, a = math.exp(logprob - OLD[i]), CREDIT[i]
        worst = max(-a * ratio, -a * min(max(ratio, 0.8), 1.28))
        worst = min(worst, -a * 10.0) if a < 0 else worst
        return worst * min(math.exp(OLD[i] - SAMPLER[i]), 2.0)

    keys = {"surrogate": "dual_clip", "ratio_max": 10.0, "clip_high": 0.28, "aggregate": "token_mean"}
    agree(of_method("tis", **keys), by_hand(loss))
    assert math.exp(OLD[1] - SAMPLER[1]) > 4  # one token is held at the cap
