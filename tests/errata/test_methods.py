"""docs/errata/methods.md: published names, and what code under those names computes.

Each test restates a released formula in its own words and holds it against gxpo's number.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations, product
from typing import Any

import pytest
import torch

import gxpo
from gxpo.algorithms.credit import advantage
from gxpo.algorithms.credit.sets import pass_at_k
from gxpo.conformance.builtin import advantages as ours
from gxpo.environments.tasks.sampler import mixed, std
from gxpo.forest.forest import Forest

ONE_OF_4, FOUR = [1.0, 0.0, 0.0, 0.0], [0] * 4
THREE_GROUPS = [1.0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0]
THREE_IDS = [0] * 4 + [1] * 4 + [2] * 4


def lower_median(xs: list[float]) -> float:
    return sorted(xs)[(len(xs) - 1) // 2]


def test_gpg_counts_rewards_instead_of_samples() -> None:
    """verl: batch / number of rewards that are not 0. The paper: batch / samples of groups that differ."""
    theirs = [12 / 5 * (r - 0.25) for r in ONE_OF_4]
    assert theirs == pytest.approx([1.8, -0.6, -0.6, -0.6])
    assert ours("gpg", THREE_GROUPS, THREE_IDS)[:4] == pytest.approx([2.25, -0.75, -0.75, -0.75])


def test_a_schedule_that_never_meets_its_switch() -> None:
    """A-GRAE's branch runs where the weight is exactly 2; the trainer passes 2 - step / total from step 1 on."""
    total = 100
    weights = [2.0 + step / total * (1 - 2.0) for step in range(1, total + 1)]
    assert 2.0 not in weights
    plain = ours("grpo", [1.0, 0, 0, 0, 1, 1, 1, 0], [0] * 4 + [1] * 4)
    assert plain == pytest.approx([1.499997] + [-0.499999] * 3 + [0.499999] * 3 + [-1.499997], abs=1e-6)
    assert ours("a_grae", [1.0, 0, 0, 0, 1, 1, 1, 0], [0] * 4 + [1] * 4)[0] == pytest.approx(0.749997, abs=1e-6)


def test_one_minus_a_root_is_not_the_root_of_one_minus() -> None:
    """A-GRAE's easy term as released, and as the mirror of its hard term: the lone wrong answer of four."""
    rewards, groups = [1.0, 0, 0, 0, 1, 1, 1, 0], [0] * 4 + [1] * 4
    coded = ours("a_grae", rewards, groups, easy="one_minus_root", alpha=1, ddof=1, eps=1e-6)
    mirrored = ours("a_grae", rewards, groups, easy="root_of_rest", alpha=1, ddof=1, eps=1e-6)
    assert (coded[-1], mirrored[-1]) == pytest.approx((-3.232023, -1.183008), abs=2e-6)


@pytest.mark.parametrize("right", range(1, 7))
def test_the_median_deviation_of_binary_rewards_is_zero(right: int) -> None:
    """MC-GRPO with an odd group: whatever the rewards, half of them or more are the median."""
    rewards = [1.0] * right + [0.0] * (7 - right)
    middle = lower_median(rewards)
    assert lower_median([abs(r - middle) for r in rewards]) == 0.0
    actual = ours("mc_grpo", rewards, [0] * 7)
    assert {round(abs(a)) for a in actual} == {0, 1000}
    assert sum(a != 0 for a in actual) == min(right, 7 - right)


def test_two_trainers_of_one_repository() -> None:
    """MC-GRPO's GSM8K trainer multiplies what is not 0 by n / (number that is not 0); its other trainer does not."""
    actual = ours("mc_grpo", [1.0, 0, 0, 0, 0], [0] * 5)
    assert actual == pytest.approx([1000.0, 0, 0, 0, 0])
    assert actual[0] * 5 / sum(x != 0 for x in actual) == pytest.approx(5000.0)


def test_mapos_deviation_is_maxrls_advantage() -> None:
    """(r - mean) / mean, under two names."""
    deviation = [(r - 0.25) / 0.25 for r in ONE_OF_4]
    assert ours("maxrl", ONE_OF_4, FOUR, eps=0.0) == pytest.approx(deviation)
    # MAPO at p = 1/4: certainty 1/4 of it, and 3/4 of GRPO's with the population std
    z = ours("grpo", ONE_OF_4, FOUR, ddof=0, eps=0.0)
    mixed = [0.75 * a + 0.25 * b for a, b in zip(z, deviation, strict=True)]
    assert ours("mapo", ONE_OF_4, FOUR, ddof=0, eps=0.0) == pytest.approx(mixed, abs=1e-9)


def test_maxrl_is_two_things_in_its_repository() -> None:
    """The estimator of the paper divides by the mean; the ablation's "maxrl" by the std and the mean."""
    std = math.sqrt(0.25 * 0.75)
    ablation = [(r - 0.25) / (std + 1e-6) / (0.25 + 1e-6) for r in ONE_OF_4]
    assert ablation[0] == pytest.approx(6.928, abs=1e-3)
    assert ours("maxrl", ONE_OF_4, FOUR)[0] == pytest.approx(2.999988, abs=1e-6)


def test_a_bound_under_the_mean_and_a_division_by_the_group() -> None:
    """The same repository's clipped variant: mean held at 1/8 or more, all over the group's size."""
    rewards = [1.0] + [0.0] * 15
    mean = 1 / 16
    clipped = [(r - mean) / max(mean, 0.125) / 16 for r in rewards]
    assert clipped[0] == pytest.approx(0.46875)
    assert ours("maxrl", rewards, [0] * 16, eps=0.0)[0] == pytest.approx(15.0)


def test_an_entropy_averaged_over_padding() -> None:
    """EDGE-GRPO's code takes the mean over the padded width: what stands on padding counts."""
    entropy = [[0.8, 0.8, 0.0, 0.0], [0.8, 0.8, 0.8, 0.8]]  # of padding taken to be 0
    lengths = [2, 4]
    padded = [statistics.fmean(row) for row in entropy]
    own_totals = [sum(row) / n for row, n in zip(entropy, lengths, strict=True)]
    a = ours("grpo", [1.0, 0.0], [0, 0], ddof=1, eps=1e-4)
    theirs = [x * statistics.fmean(padded) / h for x, h in zip(a, padded, strict=True)]
    assert [t / x for t, x in zip(theirs, a, strict=True)] == pytest.approx([1.5, 0.75])
    actual = ours("edge_grpo", [1.0, 0.0], [0, 0], mean_entropy=own_totals, ddof=1, eps=1e-4)
    assert actual == pytest.approx(a, abs=1e-9)


def test_an_entropy_that_the_loss_goes_through() -> None:
    """The same code leaves the entropy in the graph: the advantage has a gradient of its own."""
    logits = torch.tensor([[0.2, -0.1, 0.4]], dtype=torch.float64, requires_grad=True)
    logp = logits.log_softmax(-1)
    entropy = -(logp.exp() * logp).sum(-1)
    for factor, moved in ((entropy, True), (entropy.detach(), False)):
        (grad,) = torch.autograd.grad((1.0 / factor).sum() + 0.0 * logits.sum(), logits, retain_graph=True)
        assert bool((grad.abs() > 1e-6).any()) is moved


def test_a_risk_measure_that_only_punishes() -> None:
    """RiskPO with its natural baseline: no score of a bundle, however high, has an advantage above 0."""
    low, high, q_low, q_high, w = 0.2, 0.8, 1.0, 4.0, 1.5

    def advantage(score: float) -> float:
        middle = max(score - q_low, 0) - max(score - q_high, 0) + q_low - q_high
        tail = -max(q_low - score, 0)
        return (w * tail / (low + 1e-6) + middle / (high - low + 1e-6)) / (w + 1)

    actual = [advantage(s) for s in range(6)]
    assert actual == pytest.approx([-4.999982, -1.999997, -1.333331, -0.666666, 0.0, 0.0], abs=2e-6)
    assert max(actual) == 0.0
    assert max(ours("grpo", [0.0, 1, 2, 3, 4, 5], [0] * 6)) > 1


def test_two_releases_on_empty_sets() -> None:
    """ADORA: with no right answer, or no wrong one, the code for text and the code for images do the opposite."""

    def keep(right: list[int], wrong: list[int], mean_of_none: float, if_none_right: bool) -> bool:
        longest = max(right) if right else -math.inf
        return longest > (statistics.fmean(wrong) if wrong else mean_of_none) or (if_none_right and not right)

    text, images = (-math.inf, False), (math.inf, True)
    assert [keep([], [5], *text), keep([], [5], *images)] == [False, True]
    assert [keep([5], [], *text), keep([5], [], *images)] == [True, False]
    # visible only in credit that is not centred: GRPO's is 0 in both cases
    assert ours("adora", [0.0, 0.0], [0, 0], lengths=[5, 5]) == [0.0, 0.0]
    assert ours("adora", [1.0, 1.0], [0, 0], lengths=[5, 5]) == [0.0, 0.0]


def test_an_entropy_that_prefers_three_to_one() -> None:
    """SEED-GRPO's -mean log share ranks a split of 3 to 1 above 2 to 2; Shannon's entropy does not."""
    uneven, even = (0.75, 0.25), (0.5, 0.5)
    theirs = [-statistics.fmean(math.log(p) for p in shares) for shares in (uneven, even)]
    shannon = [-sum(p * math.log(p) for p in shares) for shares in (uneven, even)]
    assert theirs == pytest.approx([0.836988, 0.693147], abs=1e-6)
    assert shannon == pytest.approx([0.562335, 0.693147], abs=1e-6)
    actual = [ours("seed_grpo", ONE_OF_4, FOUR, clusters=c)[0] for c in ([0, 1, 1, 1], [0, 0, 1, 1])]
    assert actual == pytest.approx([0.75 * (1 - h / math.log(4)) for h in theirs], abs=1e-9)


def test_pass_at_k_has_four_advantages() -> None:
    """The analytic one, PKPO's, PKPO's as MaxRL's code has it, and the best minus the second (verl's grpo_passk)."""
    rewards, group = [1.0, 1.0] + [0.0] * 6, [0] * 8
    pairs = [max(rewards[i] for i in subset) for subset in combinations(range(8), 4)]
    assert statistics.fmean(pairs) == pytest.approx(0.785714, abs=1e-6)
    assert ours("passk", rewards, group, k=4, eps=1e-6)[0] == pytest.approx(0.522232, abs=1e-6)
    assert ours("pkpo", rewards, group, k=4) == pytest.approx([80 / 35] * 2 + [0.0] * 6, abs=1e-12)
    assert port(rewards, 4)[0] == pytest.approx(0.489796, abs=1e-6)
    best, second = sorted(rewards)[-1], sorted(rewards)[-2]
    assert best - second == 0.0  # two right answers: nobody learns


def port(rewards: Sequence[float], k: int) -> list[Any]:
    """MaxRL's pkpo: C(n - c, k - 1) / C(n - 1, k - 1) for a success, less the mean of that over the others."""
    n, c = len(rewards), round(sum(rewards))
    fractions = [Fraction(math.comb(n - c, k - 1), math.comb(n - 1, k - 1)) * round(r) for r in rewards]
    return [(n * a - sum(fractions)) / (n - 1) for a in fractions]


def test_a_baseline_taken_off_twice() -> None:
    """Expected gradient over that of pass@4, of 8 answers each right with chance p = sigmoid(theta): d log pi = x - p.

    By enumeration of all 256 batches, exact: 22/21, 10/7, 34/7 for MaxRL's port (times k, which it leaves out), and 1
    for eq. 33.
    """
    n, k = 8, 4
    for p, biased in ((Fraction(1, 10), "22/21"), (Fraction(1, 2), "10/7"), (Fraction(9, 10), "34/7")):
        true, theirs, mine = k * p * (1 - p) ** k, Fraction(0), 0.0  # d/dtheta of 1 - (1 - p)^k
        for right in product((0, 1), repeat=n):
            chance = p ** sum(right) * (1 - p) ** (n - sum(right))
            theirs += chance * sum((a * (x - p) for a, x in zip(port(right, k), right, strict=True)), Fraction(0)) / n
        for c in range(n + 1):  # batches with c successes are one another's permutations
            credit = ours("pkpo", [1.0] * c + [0.0] * (n - c), [0] * n, k=k)
            actual = sum(a * float(x - p) for a, x in zip(credit, [1] * c + [0] * (n - c), strict=True)) / n
            mine += math.comb(n, c) * float(p**c * (1 - p) ** (n - c)) * actual
        assert k * theirs / true == Fraction(biased)
        assert mine / float(true) == pytest.approx(1.0, abs=1e-12)
        kept_advantage = advantage(pass_at_k, kind="leave_one_out", k=k)
        forest = Forest.from_completions([[1]], [[[2]] * n], [1.0] * 3 + [0.0] * 5, success=[1.0] * 3 + [0.0] * 5)
        assert kept_advantage(forest, {}, 0).tolist() == pytest.approx(
            [float(a) for a in port([1] * 3 + [0] * 5, k)], abs=1e-12
        )


def test_best_minus_second_of_real_rewards() -> None:
    """verl's grpo_passk: one member of the group has an advantage, and it is never below 0."""
    rewards = [0.9, 0.5, 0.2, 0.1]
    gap = 0.9 - 0.5
    assert gap / (statistics.stdev(rewards) + 1e-6) == pytest.approx(1.112970, abs=1e-5)
    assert sum(a != 0 for a in ours("grpo", rewards, FOUR)) == 4


def test_a_baseline_that_is_not_the_mean_does_not_sum_to_zero() -> None:
    """NGRPO adds a virtual member: the real ones' advantages sum below 0; all-wrong groups have -1 / sqrt(G + 1)."""
    actual = ours("ngrpo", [0.0] * 8, [0] * 8, ddof=1, eps=0.0, r_max=1, k=1)
    assert actual == pytest.approx([-1 / 3] * 8)
    assert sum(ours("ngrpo", ONE_OF_4, FOUR)) == pytest.approx(-1.095443, abs=1e-5)
    assert ours("grpo", [0.0] * 8, [0] * 8) == [0.0] * 8


def test_a_flag_called_dr_grpo_that_divides_by_the_std() -> None:
    """S-GRPO's critic_type is "drgrpo"; its advantage is scaled all the same, and then weighed."""
    rewards, group = [1.0, 1.0] + [0.0] * 6, [0] * 8
    weight = 0.721110
    scaled = ours("grpo", rewards, group, ddof=1, eps=1e-8)
    centred = ours("dr_grpo", rewards, group)
    actual = ours("s_grpo", rewards, group)
    assert actual[0] == pytest.approx(weight * scaled[0], abs=1e-5)
    assert abs(actual[0] - weight * centred[0]) > 0.5


def test_a_gate_that_is_shut_for_nearly_every_group() -> None:
    """FaVChat multiplies A by tanh(delta (mean gap - baseline)); delta is 0 where the smoothed utility is below .2."""

    def gap(rewards: list[float], floor: float = 1e-6) -> float:
        pairs = [abs(a - b) + floor for i, a in enumerate(rewards) for b in rewards[:i]]
        return math.exp(statistics.fmean(map(math.log, pairs)))

    # 12 of 28 pairs are equal: (1 + 1e-6)^(16/28) 1e-6^(12/28)
    assert gap([1.0] * 4 + [0.0] * 4) == pytest.approx(0.002683, abs=1e-6)
    apart = gap([i / 7 for i in range(8)])  # as far apart as eight rewards from 0 to 1 can be spread evenly
    assert apart == pytest.approx(0.355855, abs=1e-6)
    for logprobs_apart in (0.1, 1.0, 2.8):  # nats: smoothed from 0 with .8, below .2 at the first visit
        assert (1 - 0.8) * apart * logprobs_apart < 0.2
    assert math.tanh(1.0 * (0.5 - 0.7)) == pytest.approx(-0.197375, abs=1e-6)  # under its baseline: A turns round
    # gxpo's leaves GRPO's advantages, and draws tasks by what it measures
    forest = Forest.from_completions([[1]], [[[2]] * 8], [1.0] * 4 + [0.0] * 4)
    assert gxpo.method("favchat_degrpo").advantages(forest).tolist() == ours("grpo", [1.0] * 4 + [0.0] * 4, [0] * 8)


def test_a_sampler_that_is_uniform_for_its_temperature() -> None:
    """CurES divides by 100 (right answers + 1) inside exp: rates .1, .5, .9 after 0, 3, 7 right answers."""
    score = [math.exp(math.sqrt(p * (1 - p)) / (100 * (right + 1))) for p, right in ((0.1, 0), (0.5, 3), (0.9, 7))]
    assert [x / sum(score) for x in score] == pytest.approx([0.333820, 0.333236, 0.332944], abs=1e-6)
    paper = [math.exp(math.sqrt(p * (1 - p)) / 0.1) for p in (0.1, 0.5, 0.9)]
    drawn_mixed = mixed(std(torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64), temperature=0.1), 0.0).tolist()
    assert drawn_mixed == pytest.approx([x / sum(paper) for x in paper], abs=1e-12)


def test_a_similarity_that_is_added_as_diversity() -> None:
    """MMR1 adds self-BLEU, 1 for answers that are all the same, to p (1 - p) with a weight above 0."""
    same, different = 1.0, 0.0  # self-BLEU of eight equal answers, and of eight without a common word
    score = [0.8 * 0.25 + 0.2 * x for x in (same, different)]
    assert score[0] > score[1] and [round(x, 6) for x in score] == [0.4, 0.2]
