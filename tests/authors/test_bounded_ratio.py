"""GBPO against the numbers of its authors' code, worked out in plain Python.

bounded-ratio-rl/bounded_ratio_rl@64ff1cd src/verl/trainer/ppo/core_algos.py, lines 309-366
(`compute_gbpo_outcome_advantage_and_target`) and 782-843 (`compute_policy_loss_gbpo`).
"""

from __future__ import annotations

import math
import statistics

import pytest
import torch

import gxpo
from gxpo.adapters import verl
from gxpo.parts.protocols import PolicyTokens

# group -> its rewards: most right, a tie, three levels, equal ones
REWARDS = {"a": [1.0, 1.0, 1.0, 0.0, 0.0], "b": [1.0, 0.0], "c": [0.5, 0.0, 1.0, 0.25], "d": [1.0, 1.0]}
LENGTHS = [3, 1, 2, 2, 1, 2, 3, 1, 2, 1, 3, 2, 1]


def batch():
    groups = [g for g, rewards in REWARDS.items() for _ in rewards]
    rewards = [r for rewards in REWARDS.values() for r in rewards]
    forest = gxpo.Forest.from_completions(
        prompts=[[ord(g)] for g in REWARDS],
        completions=[[[7] * LENGTHS[i] for i, own_value in enumerate(groups) if own_value == g] for g in REWARDS],
        rewards=rewards,
    )
    gaps = [0.31 * math.sin(1.7 * k + 0.4) for k in range(sum(LENGTHS))]
    old = [-1.0 - 0.1 * (k % 4) for k in range(len(gaps))]
    return forest, groups, rewards, gaps, old


def by_the_code(low, high, temperature):
    """Each token's loss |(ratio - target) A| and its slope in the log-prob."""
    _, groups, rewards, gaps, _ = batch()
    tokens, k = [], 0
    for i, group in enumerate(groups):
        own_reward = REWARDS[group]
        std = statistics.stdev(own_reward) + 1e-6
        advantage = (rewards[i] - statistics.mean(own_reward)) / std
        side = (rewards[i] - statistics.median(own_reward)) / std / temperature
        scale = 1 / (1 + math.exp(-side)) if side > -700 else 0.0
        target = 1 - low + (high + low) * scale
        for _ in range(LENGTHS[i]):
            ratio = math.exp(gaps[k])
            slope = abs(advantage) * ratio * math.copysign(1, ratio - target)
            tokens.append((i, abs((ratio - target) * advantage), slope))
            k += 1
    return tokens


def found(settings):
    forest, *_, gaps, old = batch()
    below = torch.tensor(old, dtype=torch.float64)
    now = (below + torch.tensor(gaps, dtype=torch.float64)).requires_grad_()
    loss = gxpo.method("gbpo", settings).loss(forest, PolicyTokens(now, behaviour_logprob=below))
    (slopes,) = torch.autograd.grad(loss.value, now)
    return float(loss.value.detach()), slopes.tolist()


@pytest.mark.parametrize(
    ("settings", "low", "high", "temperature"),
    [
        ({}, 0.2, 0.2, 1e-4),  # the scripts' temperature is the hard target
        ({"objective.temperature": 1e-4, "objective.clip_low": 0.3, "objective.clip_high": 0.3}, 0.3, 0.3, 1e-4),
        ({"objective.temperature": 1.0, "objective.clip_high": 0.28}, 0.2, 0.28, 1.0),
    ],
)
@pytest.mark.parametrize("aggregate", ["sequence_mean", "token_mean"])
def test_loss_and_slopes_equal_the_codes(settings, low, high, temperature, aggregate):
    tokens = by_the_code(low, high, temperature)
    share = [1 / len(tokens) if aggregate == "token_mean" else 1 / (len(LENGTHS) * LENGTHS[i]) for i, *_ in tokens]
    loss, slopes = found({**settings, "objective.aggregate": aggregate})
    assert loss == pytest.approx(sum(s * value for s, (_, value, _) in zip(share, tokens, strict=True)), abs=1e-9)
    assert slopes == pytest.approx([s * slope for s, (*_, slope) in zip(share, tokens, strict=True)], abs=1e-9)


def test_a_right_majority_is_held_at_ratio_one_and_not_pushed():
    _, slopes = found({})
    ratios = [math.exp(gap) for gap in batch()[3]]
    majority = range(sum(LENGTHS[:3]))  # group a: three of five are right, the median is 1
    assert [math.copysign(1, slopes[k]) for k in majority] == [math.copysign(1, ratios[k] - 1) for k in majority]
    equal = range(sum(LENGTHS[:11]), sum(LENGTHS))
    assert [slopes[k] for k in equal] == [0.0] * len(equal)


def test_credit_centred_by_the_median_leaves_answers_on_it_alone():
    _, slopes = found({"credit.center": "median"})
    assert slopes[: sum(LENGTHS[:3])] == [0.0] * sum(LENGTHS[:3])
    assert all(slopes[sum(LENGTHS[:3]) : sum(LENGTHS[:5])])


def test_a_group_of_one_is_told_by_the_sign_of_its_credit():
    forest = gxpo.Forest.from_completions(prompts=[[1], [2]], completions=[[[5]], [[6]]], rewards=[1.0, 0.0])
    now = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    policy = PolicyTokens(now, behaviour_logprob=torch.zeros(2, dtype=torch.float64))
    loss = gxpo.method("gbpo").loss(forest, policy, advantages=torch.tensor([0.5, -0.5]).double()).value
    assert torch.autograd.grad(loss, now)[0].tolist() == [-0.25, 0.25]


def test_verls_losses_do_not_see_groups():
    assert "compares the rollouts of a group" in (verl.why_not("gbpo", "loss") or "")
