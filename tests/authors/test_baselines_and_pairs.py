"""Baselines, weights and pairs against what their papers, or detailed summaries of them, say; in plain Python."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
import torch

import gxpo
from gxpo.algorithms.credit.baselines import shrinkage_baseline
from gxpo.algorithms.signals.ridge_probe import ridge
from gxpo.algorithms.signals.value_probe import cross_fitted
from gxpo.parts.protocols import PolicyTokens

F64 = torch.float64


def answers(lengths, rewards, per_group):
    groups = [lengths[i : i + per_group] for i in range(0, len(lengths), per_group)]
    return gxpo.Forest.from_completions(
        prompts=[[k] for k in range(len(groups))],
        completions=[[[5] * n for n in group] for group in groups],
        rewards=rewards,
    )


def test_v05_shrinks_towards_the_prior_in_the_papers_units():
    """arXiv 2603.10848: rewards -1 and 1, noise 1 / k, e = max(0, (mean - V)^2 - 1 / k), weight of the mean
    e / (e + 1 / k). gxpo's rewards are 0 and 1: everything is halved."""
    groups = [([1, 1, -1, -1], 0.3), ([1, 1, 1, 1], -0.8), ([-1, -1, -1, 1], 0.9), ([1, -1], -0.95)]
    expected, rewards, prior, group = [], [], [], []
    for g, (own_value, value) in enumerate(groups):
        mean, noise = statistics.mean(own_value), 1 / len(own_value)
        bias = max(0.0, (mean - value) ** 2 - noise)
        share = bias / (bias + noise)
        expected += [(r - (share * mean + (1 - share) * value)) / 2 for r in own_value]
        rewards += [(r + 1) / 2 for r in own_value]
        prior += [(value + 1) / 2] * len(own_value)
        group += [g] * len(own_value)
    actual = shrinkage_baseline(
        torch.tensor(rewards, dtype=F64), torch.tensor(group), torch.tensor(prior, dtype=F64), variance="bound"
    )
    assert actual.tolist() == pytest.approx(expected, abs=1e-9)
    assert gxpo.method("v05").credit.variance == "bound"


def test_poise_reads_a_rollouts_baseline_off_the_other_one():
    """arXiv 2605.07579, eq. 12, 13 and table 4: standardised features, ridge 0.01 on summed squares, clipped to
    [0, 1]; the target of a rollout's features is the other's reward."""
    rng = np.random.default_rng(4)
    seen_normal, rewards = rng.normal(size=(40, 6)) * [1, 5, 0.1, 2, 1, 3] + 2, rng.integers(0, 2, 40).astype(float)
    target = rewards.reshape(-1, 2)[:, ::-1].reshape(-1)
    scaled = (seen_normal - seen_normal.mean(0)) / seen_normal.std(0)
    slope = np.linalg.solve(scaled.T @ scaled + 0.01 * np.eye(6), scaled.T @ (target - target.mean()))
    new = rng.normal(size=(4, 6)) * 9
    estimate = np.clip((new - seen_normal.mean(0)) / seen_normal.std(0) @ slope + target.mean(), 0, 1)
    won = [1.0, 0.0, 0.0, 0.0]
    expected = [won[i] - estimate[i ^ 1] for i in range(4)]

    weight, intercept = ridge(torch.tensor(seen_normal), torch.tensor(target), 0.01 / 40)
    guess = (torch.tensor(new) @ weight + intercept).clamp(0, 1)
    assert guess.tolist() == pytest.approx(estimate.tolist(), abs=1e-9) and {0.0, 1.0} & set(guess.tolist())
    outcome, group = torch.tensor(won, dtype=F64), torch.tensor([0, 0, 1, 1])
    baseline = cross_fitted(guess, outcome, group, torch.ones(4, dtype=torch.bool))
    assert (outcome - baseline).tolist() == pytest.approx(expected, abs=1e-9)


def test_two_grpo_is_a_contrast_of_one_pair():
    """arXiv 2510.00977, eq. 7 and section 4.3: A is 1 and -1 where the two differ, 0 and 0 where they do not."""
    lengths, rewards = [3, 1, 2, 2, 1, 2], [1.0, 0.0, 1.0, 1.0, 0.2, 0.7]
    forest = answers(lengths, rewards, 2)
    m = gxpo.method("two_grpo")
    advantage = [1.0, -1.0, 0.0, 0.0, -1.0, 1.0]
    expected = [a for a, n in zip(advantage, lengths, strict=True) for _ in range(n)]
    assert m.advantages(forest).tolist() == pytest.approx(expected, abs=1e-5)  # eps 1e-6 over a std of .25
    gaps = [0.3, -0.1, 0.25, -0.4, 0.0, 0.1, 0.2, -0.2, 0.4, -0.3, 0.1]
    now = torch.tensor(gaps, dtype=F64)
    actual = float(m.loss(forest, PolicyTokens(now, torch.zeros_like(now)), advantages=torch.tensor(expected)).value)
    ratio = [math.exp(gap) for gap in gaps]
    up = [min(r, 1.2) for r in ratio[:3]], [min(r, 1.2) for r in ratio[9:]]
    down = [max(r, 0.8) for r in ratio[3:4]], [max(r, 0.8) for r in ratio[8:9]]
    pairs = sum(statistics.mean(x) for x in up) - sum(statistics.mean(x) for x in down)
    assert actual == pytest.approx(-pairs / 6, abs=1e-9)


def test_reg_grpo_regresses_z_scores_on_z_scores():
    """arXiv 2506.07464, eq. 5, 7, 8: (A - A_theta)^2, both of them z-scores; gxpo's is (G - 1)^-1 G / 2 of the mean."""
    lengths, rewards = [2, 1, 3], [1.0, 0.2, 0.0]
    gaps = [0.5, 0.1, -0.7, 0.2, 0.3, -0.1]
    score = [0.6, -0.7, 0.4]
    z = lambda x, eps: [(v - statistics.mean(x)) / (statistics.stdev(x) + eps) for v in x]  # noqa: E731
    paper = statistics.mean((a - b) ** 2 for a, b in zip(z(rewards, 1e-6), z(score, 0.0), strict=True))
    now = torch.tensor(gaps, dtype=F64)
    policy = PolicyTokens(now, torch.zeros_like(now))
    actual = float(gxpo.method("reg_grpo").loss(answers(lengths, rewards, 3), policy).value)
    assert actual == pytest.approx(paper * 3 / 2 / 2, abs=1e-9)


def test_minpro_weighs_by_the_least_ratio_of_the_prefix():
    """arXiv 2601.22718: sg[clip(min_{i<t} rho_i rho_t)] A log pi, the mean over all tokens of the batch."""
    lengths, rewards = [4, 2, 1], [1.0, 0.0, 0.0]
    gaps = [0.1, -0.3, 0.4, 0.2, 0.5, -0.6, 0.2]
    old = [-1.0, -0.5, -2.0, -0.7, -0.2, -1.5, -0.9]
    mean, std = statistics.mean(rewards), statistics.stdev(rewards) + 1e-6
    slopes, k = [], 0
    for n, reward in zip(lengths, rewards, strict=True):
        for t in range(n):
            least = min((math.exp(g) for g in gaps[k : k + t]), default=1.0)
            weight = min(least * math.exp(gaps[k + t]), 1.28)
            slopes.append(-weight * (reward - mean) / std / sum(lengths))
        k += n
    below = torch.tensor(old, dtype=F64)
    now = (below + torch.tensor(gaps, dtype=F64)).requires_grad_()
    loss = gxpo.method("minpro").loss(answers(lengths, rewards, 3), PolicyTokens(now, below)).value
    (actual,) = torch.autograd.grad(loss, now)
    assert actual.tolist() == pytest.approx(slopes, abs=1e-9)


@pytest.mark.parametrize("reference", ["none", "start"])
def test_steporlms_pairs_follow_the_solver_and_then_the_process(reference):
    """StepORLM at ICLR 2026 (arXiv 2509.22558), equation 1 and Algorithm 1: a pair of different results has weight 1,
    one of equal results the difference of the shares of right steps; log-probs of whole answers without a reference."""
    lengths = [3, 1, 2, 4]
    right, process = [True, True, False, False], [0.2, 0.6, 0.9, 0.9]
    logprob = [-0.4, -1.3, -0.2, -0.9, -2.0, -0.1, -0.6, -0.3, -0.8, -1.1]
    frozen = [-0.5, -1.0, -0.4, -0.7, -1.0, -0.3, -0.6, -0.5, -0.9, -0.7]
    begins = [sum(lengths[:i]) for i in range(5)]
    anchor = frozen if reference == "start" else [0.0] * 10
    score = [sum(logprob[t] - anchor[t] for t in range(begins[i], begins[i + 1])) for i in range(4)]

    def construct(a, b):
        """Algorithm 1: (winner, loser, weight), or None."""
        if right[a] and not right[b]:
            return a, b, 1.0
        if right[b] and not right[a]:
            return b, a, 1.0
        diff = process[a] - process[b]
        if diff > 0:
            return a, b, diff
        if diff < 0:
            return b, a, -diff
        return None

    taken = [construct(a, b) for a in range(4) for b in range(a + 1, 4)]
    terms = [w * math.log1p(math.exp(-0.1 * (score[a] - score[b]))) for a, b, w in filter(None, taken)]
    assert len(terms) == 5  # the two wrong ones are alike
    forest = answers(lengths, [r + p for r, p in zip(right, process, strict=True)], 4)
    forest = forest.replace(success=torch.tensor(right, dtype=F64))
    now, still = torch.tensor(logprob, dtype=F64), torch.tensor(frozen, dtype=F64)
    m = gxpo.method("steporlm", {"objective.reference": "start"} if reference == "start" else None)
    actual = m.loss(forest, PolicyTokens(now, still, reference_logprob=still if reference == "start" else None)).value
    assert float(actual) == pytest.approx(statistics.mean(terms), abs=1e-9)
