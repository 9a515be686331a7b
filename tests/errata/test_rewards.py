"""docs/errata/rewards.md: what happens to a reward before, and beside, the advantage.

Each test restates a system's documented formula in its own words and holds it against gxpo's number.
"""

from __future__ import annotations

import math
import statistics

import pytest
import torch

import gxpo
from gxpo.algorithms.objectives.penalty import KLReward
from gxpo.conformance.builtin import advantages as ours
from gxpo.environments.rewards.panel import beats
from gxpo.environments.rewards.tournament import bracket, pairings, rewards
from gxpo.forest.forest import Forest

FOUR = [0] * 4


def standardised(rewards: list[float], eps: float) -> list[float]:
    mean, std = statistics.fmean(rewards), statistics.stdev(rewards)
    return [(r - mean) / (std + eps) for r in rewards]


def test_unscored_as_zero() -> None:
    """Summed with nansum (TRL until #5902), a completion that nobody scored has 0 and moves the baseline."""
    scores = torch.tensor([[1.0], [math.nan], [-1.0], [-1.0]])
    theirs = standardised(scores.nansum(1).tolist(), 1e-4)
    assert theirs == pytest.approx([1.305446, 0.261089, -0.783268, -0.783268], abs=1e-6)
    actual = ours("grpo", [1.0, None, -1.0, -1.0], FOUR, ddof=1, eps=1e-4)
    assert actual == pytest.approx([1.154601, 0.0, -0.577300, -0.577300], abs=1e-6)
    assert theirs[1] > 0  # doing nothing is reinforced where others are punished


def test_a_list_of_one_reward() -> None:
    """A reward function that returned one number was broadcast to every row (TRL until #6534)."""
    rows = torch.zeros(4)
    rows[:] = torch.tensor([0.7])
    assert rows.tolist() == pytest.approx([0.7] * 4)
    with pytest.raises(ValueError, match="rewards"):
        Forest.from_completions([[1]], [[[2], [3], [4], [5]]], [0.7])


def test_a_scale_for_each_prompt_is_lost_in_the_std() -> None:
    """VITAL's difficulty weight and DR-IRL's scales multiply a prompt's rewards; GRPO divides by them again."""
    rewards, weight = [1.0, 0.0, 0.0, 0.5], 0.5
    plain, scaled = (standardised([w * r for r in rewards], 0.0) for w in (1.0, weight))
    assert scaled == pytest.approx(plain, abs=1e-12)
    half = ours("dr_grpo", [weight * r for r in rewards], FOUR)
    assert half == pytest.approx([weight * a for a in ours("dr_grpo", rewards, FOUR)], abs=1e-12)


def test_a_kl_that_no_baseline_sees() -> None:
    """OpenRLHF normalises rewards first and subtracts the KL of each token afterwards; here a KL in the reward is part
    of the outcome, so that the group's statistics see it."""
    rewards, kl, coef = [1.0, 0.0, 0.0, 0.0], [0.5, 0.5, 0.5, 0.5], 0.1
    theirs = [a - coef * k for a, k in zip(standardised(rewards, 1e-9), kl, strict=True)]
    assert theirs == pytest.approx([1.45, -0.55, -0.55, -0.55], abs=1e-6)
    forest = Forest.from_completions([[1]], [[[2], [3], [4], [5]]], rewards, logprobs=[[[-1.0]] * 4])
    signals = {"reference_logprob": torch.full((4,), -1.5, dtype=torch.float64)}
    method = gxpo.method(
        "grpo", {"objective.kl.coef": coef, "objective.kl.place": "reward", "objective.kl.estimator": "k1"}
    )
    assert isinstance(method.kl_reward, KLReward)
    # the same KL for all: a constant, which the group's mean takes away
    assert method.advantages(forest, signals).tolist() == pytest.approx([1.499997] + [-0.499999] * 3, abs=1e-6)


def test_rewards_of_other_prompts_in_a_diversity() -> None:
    """DRA-GRPO's code sums cosines over the local batch; a twin of another prompt halves the reward."""
    embeddings = [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]]
    e = torch.tensor(embeddings, dtype=torch.float64)
    over_batch = (1 / ((e @ e.T).sum(1) + 1e-6)).tolist()
    assert over_batch == pytest.approx([0.5] * 4, abs=1e-6)
    actual = ours("dra_grpo", [1.0, 0.0, 1.0, 0.0], [0, 0, 1, 1], embeddings=embeddings, ddof=1, eps=0.0)
    ours_of_group = ours("dra_grpo", [1.0, 0.0], [0, 0], embeddings=embeddings[:2], ddof=1, eps=0.0)
    assert actual == pytest.approx([*ours_of_group, *ours_of_group], abs=1e-12)


def test_a_negative_reward_shrunk_is_a_reward() -> None:
    """The same division makes a redundant wrong answer worth less negative than a unique one."""
    unique, redundant = -1.0 / 1.0, -1.0 / 2.0
    assert redundant > unique
    embeddings = [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]
    actual = ours("dra_grpo", [-1.0, -1.0, 1.0, 1.0], FOUR, embeddings=embeddings, ddof=1, eps=1e-4)
    assert actual[0] == pytest.approx(actual[1])


def test_partial_credit_with_the_sign_turned() -> None:
    """grpo-composer's step reward 1 / (1 + exp(+b (share - c))) falls with the share of right steps."""
    shares = (0.2, 0.8)
    theirs = [1 / (1 + math.exp(5 * (x - 0.5))) for x in shares]
    rising = [1 / (1 + math.exp(-5 * (x - 0.5))) for x in shares]
    assert theirs == pytest.approx([0.817574, 0.182426], abs=1e-6)
    assert rising == pytest.approx([0.182426, 0.817574], abs=1e-6)


def test_a_bonus_for_rare_wrong_answers() -> None:
    """grpo-composer bounds XRPO's bonus by |A| and gives it to every answer: a rare wrong one loses less."""
    logprob, rewards = [-0.2, -0.6, -0.4, -1.2], [1.0, 1.0, 0.0, 0.0]
    a = standardised(rewards, 1e-8)
    eta = [math.exp(s - statistics.fmean(logprob)) for s in logprob]
    theirs = [x + min(max(2.5 * (1 - h), 0.0), 0.5 * abs(x)) for x, h in zip(a, eta, strict=True)]
    assert theirs[3] == pytest.approx(a[3] / 2, abs=1e-6)
    actual = ours("xrpo", rewards, FOUR, mean_logprob=logprob, novelty=2.5, cap=0.5, ddof=1, eps=0.0)
    assert actual[3] == pytest.approx(a[3], abs=1e-6) and actual[0] == pytest.approx(a[0], abs=1e-6)


def test_a_filter_on_shaped_rewards() -> None:
    """A zero-variance filter that reads shaped rewards keeps all-right groups; one that reads verdicts drops them."""
    logprob = [-0.1, -0.5, -0.3, -0.9]
    shaped = ours("unlikeliness", [1.0] * 4, FOUR, mean_logprob=logprob, beta=0.25, all_correct=True, ddof=1, eps=1e-6)
    assert max(shaped) > 0.9 > 0 > min(shaped)
    assert ours("grpo", [1.0] * 4, FOUR) == [0.0] * 4


def test_an_entropy_that_the_baseline_takes_away() -> None:
    """TTRV: frequency of an answer less .75 times the group's entropy over ln(distinct answers), restated."""
    answers = "aabacbad"
    frequency = [answers.count(a) / 8 for a in answers]
    shares = [0.5, 0.25, 0.125, 0.125]
    spread = -sum(p * math.log(p) for p in shares) / math.log(4)
    theirs = [f - 0.75 * spread for f in frequency]
    assert spread == pytest.approx(0.875) and theirs[:3] == pytest.approx([-0.15625, -0.15625, -0.40625])
    actual = ours("grpo", theirs, [0] * 8, ddof=1, eps=1e-6)
    assert actual == pytest.approx(ours("grpo", frequency, [0] * 8, ddof=1, eps=1e-6), abs=1e-12)
    assert [actual[k] for k in (0, 2, 4)] == pytest.approx([0.900098, -0.540059, -1.260137], abs=1e-6)


def test_an_order_that_goes_in_a_circle() -> None:
    """HERON's order with margins of 1 and 0.5: the first beats the second, that the third, and the third the first."""
    circle = [[0.0, 2.0], [0.6, 1.0], [1.2, 0.0]]
    assert [beats(circle[i], circle[j], [1.0, 0.5]) for i, j in ((0, 1), (1, 2), (2, 0))] == [1, 1, 1]


def test_a_knockout_of_equals() -> None:
    """ArenaRL drops byes before it pairs, and ranks attempts that tie by their place in the list."""
    theirs = [seed for seed in [0, 7, 3, 4, 1, 6, 2, 5] if seed < 6]
    assert list(zip(theirs[::2], theirs[1::2], strict=True)) == [(0, 3), (4, 1), (2, 5)]
    assert bracket(6) == [0, None, 3, 4, 1, None, 2, 5]
    ranks = [1 - k / 7 for k in range(8)]
    assert standardised(ranks, 1e-6)[0] == pytest.approx(1.428865, abs=1e-5)
    rounds: list[dict[tuple[int, int], float]] = []
    while due := pairings("single_elim", 8, rounds):
        rounds.append(dict.fromkeys(due, 0.5))
    assert rewards("single_elim", 8, rounds) == [0.5] * 8
