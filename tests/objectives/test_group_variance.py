"""GVPO: the card's number, the stated gradient, a loop, what it reduces to."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.objectives import labelled_groups as groups

from gxpo.errors import ConfigError, GxpoError, MissingSignal
from gxpo.objectives.group_variance import GroupVariance, group_variance
from gxpo.protocols import PolicyTokens


def column(*x: float) -> torch.Tensor:
    return torch.tensor(x, dtype=torch.float64)


ONE = torch.zeros(4, dtype=torch.int64)


def test_card() -> None:
    # r - mean r = [.5, -.5, -.5, .5]; D - mean D = [.2375, -.0625, .0875, -.2625];
    # residuals beta D - r = [-.47625, .49375, .50875, -.52625]; their squares sum to 1.006369; / 2 / 3 = .167728
    reward, log_ratio = column(1, 0, 0, 1), column(0.2, -0.1, 0.05, -0.3).requires_grad_()
    loss = group_variance(log_ratio, reward, ONE, 0.1)
    assert float(loss.detach()) == pytest.approx(0.167728, abs=6e-7)
    loss.backward()
    assert log_ratio.grad is not None  # beta residual / (G - 1)
    assert log_ratio.grad.tolist() == pytest.approx([-0.015875, 0.0164583, 0.0169583, -0.0175417], abs=1e-7)


def test_the_constant_mean_has_the_gradient_of_the_live_one() -> None:
    generator = torch.Generator().manual_seed(0)
    reward, log_ratio = torch.rand(2, 7, generator=generator, dtype=torch.float64)
    group = torch.tensor([0, 1, 0, 1, 1, 0, 1])
    x = log_ratio.clone().requires_grad_()
    (detached,) = torch.autograd.grad(group_variance(x, reward, group, 0.3), x)
    y, total = log_ratio.clone().requires_grad_(), torch.zeros((), dtype=torch.float64)
    for g in (0, 1):  # the unbiased variance of beta D - r
        total = total + (0.3 * y[group == g] - reward[group == g]).var() / 2
    (live,) = torch.autograd.grad(total / 2, y)
    torch.testing.assert_close(detached, live, rtol=1e-12, atol=1e-15)


def by_hand(forest, x, beta):
    gap = x["logprob"] - x["proximal_logprob"]
    found, value, slopes = groups.members(forest), 0.0, []
    for rows in found.values():
        compared = [row for row in rows if row["compared"]]
        if len(compared) < 2 or not groups.moves(rows):
            continue
        for row in rows:
            row["d"] = sum(float(gap[p]) for p in row["entries"])
        mean_d = sum(row["d"] for row in compared) / len(compared)
        mean_r = sum(row["reward"] for row in compared) / len(compared)
        for row in rows:
            residual = beta * (row["d"] - mean_d) - (row["reward"] - mean_r)
            value += residual**2 / 2 / (len(rows) - 1) / len(found)
            slopes.append((row, beta * residual / (len(rows) - 1) / len(found)))
    return value, groups.spread_over(forest, slopes, "sum")


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.sampled_from([0.05, 1.0]))
def test_agrees_with_a_loop(seed, beta):
    forest = groups.random_labelled(seed)
    x = groups.policies(forest, seed)
    value, gradient = groups.graded(GroupVariance(beta=beta), forest, x)
    expected, slopes = by_hand(forest, x, beta)
    assert value == pytest.approx(expected, rel=1e-10, abs=1e-13)
    torch.testing.assert_close(gradient, slopes, rtol=1e-9, atol=1e-13)


@settings(max_examples=12)
@given(st.integers(0, 10**6))
def test_rules(seed):
    groups.keeps_the_rules(GroupVariance(), seed)
    groups.weights_scale_derivatives(GroupVariance(), seed)


def test_the_gradient_is_the_same_however_the_step_is_cut():
    groups.same_however_cut(GroupVariance())


def test_on_policy_it_is_reinforce_with_the_groups_mean_as_baseline():
    forest = groups.forest_of([("a", 2, 1), ("a", 3, 0), ("a", 1, 0)])
    x = groups.policies(forest, 0)
    x["proximal_logprob"] = x["logprob"]
    _, gradient = groups.graded(GroupVariance(beta=0.2), forest, x)
    # -beta (r - mean r) / (G - 1), mean r = 1/3, one group
    assert gradient.tolist() == pytest.approx([-0.2 / 3] * 2 + [0.1 / 3] * 4)


def test_the_optimum_is_the_tilted_policy():
    """Policies over four answers, each sampled once: the minimum is at softmax(log old + r / beta)."""
    old, reward, beta = column(0.4, 0.3, 0.2, 0.1).log(), column(1, 0, 0.5, 0.2), 0.5
    best = torch.log_softmax(old + reward / beta, 0)
    assert float(group_variance(best - old, reward, ONE, beta)) == pytest.approx(0.0, abs=1e-24)
    worse = torch.log_softmax(old + 0.9 * reward / beta, 0)
    assert float(group_variance(worse - old, reward, ONE, beta)) > 1e-4


def test_equal_rewards_pull_back_and_nothing_else():
    forest = groups.forest_of([("a", 2, 1), ("a", 2, 1)])
    x = groups.policies(forest, 1)
    value, gradient = groups.graded(GroupVariance(), forest, x)
    d = (x["logprob"] - x["proximal_logprob"]).view(2, 2).sum(1)
    assert value > 0 and torch.equal(torch.sign(gradient.view(2, 2)[:, 0]), torch.sign(d - d.mean()))
    still = {**x, "proximal_logprob": x["logprob"]}
    assert groups.graded(GroupVariance(), forest, still)[0] == 0.0
    assert GroupVariance().on_equal == "signal"


def test_a_group_of_one_gives_nothing_and_counts():
    pair = [("a", 2, 1), ("a", 2, 0)]
    alone = groups.forest_of([*pair, ("b", 3, 1)])
    x = groups.policies(alone, 2)
    value, gradient = groups.graded(GroupVariance(), alone, x)
    first = {k: v[:4] for k, v in x.items()}
    assert value == pytest.approx(groups.graded(GroupVariance(), groups.forest_of(pair), first)[0] / 2)
    assert bool((gradient[4:] == 0).all())


def test_what_it_is_measured_against():
    forest = groups.forest_of([("a", 2, 1), ("a", 2, 0)])
    x = groups.policies(forest, 3)
    for over in ("proximal", "behaviour", "reference"):
        same = {**x, "proximal_logprob": x[f"{over}_logprob"]}
        found = groups.graded(GroupVariance(ratio_over=over), forest, x)
        assert found[0] == groups.graded(GroupVariance(), forest, same)[0]
    assert GroupVariance(ratio_over="reference").needs == ("reference_logprob",) and GroupVariance().needs == ()
    without = {k: v for k, v in x.items() if k != "reference_logprob"}
    with pytest.raises(MissingSignal, match="reference_logprob"):
        groups.graded(GroupVariance(ratio_over="reference"), forest, without)
    unknown = {**x, "behaviour_logprob": torch.full_like(x["behaviour_logprob"], torch.nan)}
    with pytest.raises(GxpoError, match="4 of 4 trainable tokens have no behaviour"):
        groups.graded(GroupVariance(ratio_over="behaviour"), forest, unknown)


def test_metrics_and_settings():
    forest = groups.forest_of([("a", 1, 1), ("a", 1, 0)])
    proximal = column(-1.0, -1.0)
    policy = PolicyTokens(proximal + column(0.5, -0.5), proximal, proximal_logprob=proximal)
    found = GroupVariance(beta=0.2).metrics(forest, policy, column(0, 0), column(1, 1))
    assert found["implicit_reward_gap"] == pytest.approx(0.4)  # residuals 0.1 - 0.5 and -0.1 + 0.5
    assert found["approx_kl"] == pytest.approx(math.cosh(0.5) - 1)  # (e^.5 - 1 - .5 + e^-.5 - 1 + .5) / 2
    with pytest.raises(ConfigError, match=r"objective\.beta"):
        GroupVariance(beta=0.0)
    with pytest.raises(ConfigError, match=r"objective\.ratio_over"):
        GroupVariance(ratio_over="nobody")  # type: ignore[arg-type]
