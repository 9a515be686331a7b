"""docs/errata/objectives.md: published objectives, and what code under their names computes.

Each test restates a released formula in its own words; where gxpo has a part of it, against that part's number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

import gxpo
from gxpo.forest.forest import Forest

# Five tokens of two answers, A = 1 and -1.
OLD = torch.tensor([-0.5, -1.0, -2.0, -0.3, -0.7], dtype=torch.float64)
NEW = OLD + torch.tensor([0.3, -0.1, -0.4, 0.2, 0.5], dtype=torch.float64)
ROW, CREDIT = torch.tensor([0, 0, 1, 1, 1]), torch.tensor([1.0, 1.0, -1.0, -1.0, -1.0], dtype=torch.float64)


def slope(loss: Callable[[Tensor], Tensor], at: Tensor = NEW) -> Tensor:
    x = at.clone().requires_grad_()
    return torch.autograd.grad(loss(x), x)[0]


def per_row(x: Tensor, how: Callable[[Tensor], Tensor]) -> Tensor:
    """[2] of each answer's tokens."""
    return torch.stack([how(x[r == ROW]) for r in (0, 1)])


def ours(keys: dict[str, object], at: Tensor = NEW) -> tuple[float, list[float]]:
    """Value and slope of the policy term on the five tokens."""
    forest = Forest.from_completions([[1]], [[[2, 3], [4, 5, 6]]], [1.0, 0.0])
    term = gxpo.method("grpo", keys).fill(horizon=1.0).terms["policy"]
    ones = torch.ones(5, dtype=torch.float64)

    def loss(x: Tensor) -> Tensor:
        return term(forest, gxpo.PolicyTokens(x, OLD), CREDIT, ones, {}, 0)[0]

    return float(loss(at).detach()), slope(loss, at).tolist()


def test_sequence_ratios_that_became_token_ratios() -> None:
    """TOPR's weight on wrong answers is min(pi(y) / mu(y), 1) of whole answers, elsewhere of each token."""
    full_per_row = per_row(NEW - OLD, torch.sum).exp()
    assert full_per_row.tolist() == pytest.approx([1.221403, 1.349859], abs=1e-6)
    paper = slope(
        lambda x: -(per_row(x * CREDIT, torch.sum) * torch.tensor([1.0, min(float(full_per_row[1]), 1.0)])).mean()
    )
    token = torch.where(CREDIT > 0, torch.ones(5).double(), (NEW - OLD).exp().clamp_max(1))
    ported = slope(lambda x: -(token * CREDIT * x).mean())
    assert paper.tolist() == pytest.approx([-0.5, -0.5, 0.5, 0.5, 0.5])
    assert ported.tolist() == pytest.approx([-0.2, -0.2, 0.134064, 0.2, 0.2], abs=1e-6)


def test_a_square_of_a_sum_that_became_a_sum_of_squares() -> None:
    """Kimi k1.5 and OPMD penalise (tau / 2) (sum_t log-ratio)^2, verl's dro, ROLL and Trinity-RFT each square."""
    tau = 0.1
    full_slope = slope(lambda x: tau / 2 * per_row(x - OLD, torch.sum).square().sum())
    token = slope(lambda x: tau / 2 * (x - OLD).square().sum())
    assert full_slope.tolist() == pytest.approx([0.02, 0.02, 0.03, 0.03, 0.03])  # 0.1 x 0.2 and 0.1 x 0.3
    assert token.tolist() == pytest.approx([0.03, -0.01, -0.04, 0.02, 0.05])
    dro = slope(lambda x: -(x * CREDIT - tau / 2 * (x - OLD).square()).mean())
    assert dro.tolist() == pytest.approx([-0.194, -0.202, 0.192, 0.204, 0.210])


def test_a_branch_that_calls_the_other_function() -> None:
    """DisCO's ratio score takes tau in the paper; its released branch calls the function of DisCO-b, which has none."""
    right, wrong, tau = [-0.4, -0.6], [-0.5, -0.9, -0.7], 1.0

    def disco_b(positive: Sequence[float], negative: Sequence[float]) -> float:
        return sum(positive) / len(positive) - sum(negative) / len(negative)

    def disco(positive: Sequence[float], negative: Sequence[float], tau: float) -> float:
        return sum(positive) / len(positive) - tau * math.log(sum(math.exp(s / tau) for s in negative) / len(negative))

    with pytest.raises(TypeError):
        disco_b(right, wrong, tau)  # type: ignore[call-arg]  # the released call
    assert [disco_b(right, wrong), disco(right, wrong, tau)] == pytest.approx([0.2, 0.186711], abs=1e-6)
    from gxpo.algorithms.objectives.sequence_losses import discriminative

    score = torch.tensor([*right, *wrong], dtype=torch.float64)
    positive = torch.tensor([True] * 2 + [False] * 3)
    group = torch.zeros(5, dtype=torch.int64)
    assert float(discriminative(score, group, positive, ~positive, tau)) == pytest.approx(-0.186711, abs=1e-6)


def test_a_branch_that_nothing_reaches() -> None:
    """HAPO scales what lies below 0 by the minimum, which is below 0: all scores are 0 or more, and its rule for
    tokens of low entropy applies to none."""
    score = [-1.5, -0.5, 0.0, 1.0, 2.0]
    released = [h / max(score) if h > 0 else h / min(score) for h in score]
    meant = [h / max(score) if h > 0 else h / -min(score) for h in score]
    assert min(released) == 0.0 and min(meant) == -1.0
    assert released == pytest.approx([1.0, 1 / 3, 0.0, 0.5, 1.0])


def test_a_penalty_that_is_a_constant() -> None:
    """EPO's smoothing term is p0 where the entropy leaves its band, found by comparing: it has no gradient."""
    entropy, usual = torch.tensor([0.5, 1.2, 0.05], dtype=torch.float64), 0.6

    def released(h: Tensor) -> Tensor:
        outside = (h <= 0.5 * usual) | (h >= 1.5 * usual)
        return 0.1 * outside.double().mean() + 0.0 * h.sum()

    def hinged(h: Tensor) -> Tensor:
        return ((0.5 * usual - h).clamp_min(0) + (h - 1.5 * usual).clamp_min(0)).mean()

    assert float(released(entropy)) == pytest.approx(0.066667, abs=1e-6)
    assert not bool(slope(released, entropy).any())
    assert slope(hinged, entropy).tolist() == pytest.approx([0.0, 1 / 3, -1 / 3])


def test_a_schedule_that_jumps() -> None:
    """EPO's weight ends its first half at 0.827 and begins the second at 0.8."""
    assert 1 - 0.2 * (1 - math.exp(-2)) == pytest.approx(0.827067, abs=1e-6)
    assert 0.8 * math.exp(0) == 0.8


def test_an_entropy_of_log_probs_that_are_constants() -> None:
    """PAPO's masked log-probs are computed once, without gradient: the penalty on their entropy shifts the loss."""
    masked = (NEW - torch.tensor([0.3, 0.0, 0.1, 0.5, -0.1], dtype=torch.float64)).detach()

    def added(x: Tensor) -> Tensor:
        d = masked - x
        return -0.02 * (d.exp() - d - 1).mean() + 0.03 * (-x).mean() + 0.03 * (-masked).mean()

    def without(x: Tensor) -> Tensor:
        d = masked - x
        return -0.02 * (d.exp() - d - 1).mean() + 0.03 * (-x).mean()

    assert torch.equal(slope(added), slope(without))
    assert float(added(NEW) - without(NEW)) == pytest.approx(0.03 * float(-masked.mean()))


def test_the_same_value_and_another_gradient() -> None:
    """GPPO's loss is PPO's to the last digit; the tokens that PPO cuts keep a gradient."""
    plain = ours({"objective.aggregate": "token_mean"})
    rho = (NEW - OLD).exp()
    alive = {"low": 0.8 / rho.detach(), "high": 1.2 / rho.detach()}

    def gppo(x: Tensor, b_low: float = 1.0) -> Tensor:
        r = (x - OLD).exp()
        held_b_low = torch.where(rho < 0.8, b_low * alive["low"] * r, torch.where(rho > 1.2, alive["high"] * r, r))
        return torch.max(-CREDIT * r, -CREDIT * held_b_low).mean()

    assert float(gppo(NEW)) == pytest.approx(plain[0]) == pytest.approx(0.313057, abs=1e-6)
    assert slope(gppo).tolist() == pytest.approx([-0.24, -0.180967, 0.16, 0.244281, 0.329744], abs=1e-6)
    assert plain[1] == pytest.approx([0, -0.180967, 0, 0.244281, 0.329744], abs=1e-6)
    # CE-GPPO's 0.75, written into the same maximum, makes it prefer the unclipped side: 0.75 x 0.8 < 0.670
    naive = slope(lambda x: gppo(x, 0.75))
    assert float(naive[2]) == pytest.approx(0.134064, abs=1e-6)
    keys = {"objective.surrogate": "preserving_clip", "objective.slope_low": 0.75, "objective.aggregate": "token_mean"}
    assert ours(keys)[1][2] == pytest.approx(0.75 * 0.8 / 5)  # the side is chosen as PPO chooses it


def test_a_constant_that_is_read_and_not_used() -> None:
    """KlearReasoner bounded the loss of A < 0 by -A, not by -A `clip_ratio_c`, until its commit e0f7bb1: a worsening
    token whose ratio was above 1 had no gradient. Ratios of the last three, where A < 0: .67, 1.22, 1.65."""

    def dual(x: Tensor, c: float) -> Tensor:
        r = (x - OLD).exp()
        clipped = torch.max(-CREDIT * r, -CREDIT * r.clamp(0.8, 1.2))
        return torch.where(CREDIT < 0, torch.min(-CREDIT * c, clipped), clipped).mean()

    before, after = slope(lambda x: dual(x, 1.0)), slope(lambda x: dual(x, 3.0))
    assert before[3:].tolist() == [0.0, 0.0] and after[3:].tolist() == pytest.approx([0.244281, 0.329744], abs=1e-6)
    keys = {"objective.surrogate": "preserving_clip", "objective.aggregate": "token_mean"}
    assert ours(keys)[1][3:] == pytest.approx(after[3:].tolist(), abs=1e-6)
    assert ours({**keys, "objective.ratio_max": 1.3})[1][4] == 0.0


def test_a_residual_that_brings_back_what_was_clipped() -> None:
    """FiberPO clips an answer's mean log-ratio and each token's residual; taken against the clipped mean, the excess
    comes back in the residuals."""

    edge = 0.2 + 1e-12  # two residuals are at the bound, where the gradient passes

    def loss(x: Tensor, leaky: bool) -> Tensor:
        d = x - OLD
        mean = per_row(d, torch.mean)[ROW]
        base = mean.clamp(-0.05, 0.05)
        rest = (d - (base if leaky else mean)).clamp(-edge, edge)
        return per_row(-CREDIT * (base + rest).exp(), torch.mean).mean()

    assert float(loss(NEW, leaky=False)) == pytest.approx(0.014911, abs=1e-6)
    assert float(loss(NEW, leaky=True)) == pytest.approx(0.013807, abs=1e-6)
    exact, leaky = slope(lambda x: loss(x, leaky=False)), slope(lambda x: loss(x, leaky=True))
    # of the first answer -(e^0.25 - e^-0.15) / 8
    assert exact.tolist() == pytest.approx([-0.052915, 0.052915, -0.064546, 0.129093, -0.064546], abs=1e-6)
    assert leaky.tolist() == pytest.approx([0, -0.226209, 0, 0.203567, 0], abs=1e-6)
    assert per_row(exact, torch.sum).tolist() == pytest.approx([0, 0], abs=1e-12)  # the mean is at its bound


def test_a_divergence_that_jumps_at_its_ends() -> None:
    """SDPO's generalised divergence goes to 0 with alpha, and at alpha = 0 is the whole KL(teacher || student)."""
    student, teacher = (torch.tensor(x, dtype=torch.float64) for x in ([0.6, 0.3, 0.1], [0.2, 0.5, 0.3]))

    def kl(p: Tensor, q: Tensor) -> float:
        return float((p * (p / q).log()).sum())

    def released(alpha: float) -> float:
        if alpha in (0, 1):
            return kl(teacher, student) if alpha == 0 else kl(student, teacher)
        middle = (1 - alpha) * student + alpha * teacher
        return (1 - alpha) * kl(student, middle) + alpha * kl(teacher, middle)

    assert [released(a) for a in (0, 0.5, 1)] == pytest.approx([0.365274, 0.091121, 0.396058], abs=1e-6)
    assert released(1e-6) / 1e-6 == pytest.approx(0.365274, abs=1e-5) and released(1e-6) < 1e-6


def test_a_density_averaged_over_its_entries() -> None:
    """SofT-GRPO's code averages the Gumbel log-densities of a step's entries; the density of them all is their sum."""
    noise = [0.5, -0.2, 1.1]
    each = [-g - math.exp(-g) for g in noise]
    assert [sum(each) / 3, sum(each)] == pytest.approx([-1.186935, -3.560805], abs=1e-6)
    # ratios: with three entries that each grew by e^0.1, the mean says e^0.1 and the sum e^0.3
    assert math.exp(0.3) / math.exp(0.1) == pytest.approx(1.221403, abs=1e-6)


def test_a_clamp_that_lets_the_gradient_through() -> None:
    """NFT's floor under the implicit ratio of wrong answers holds the value and passes the gradient: with the floor at
    1 no wrong answer has a loss above 0, and each is pushed down all the same."""
    q = 0.25

    def loss(lp: Tensor, hard: bool) -> Tensor:
        implicit = (1 - q * lp.exp()) / (1 - q)
        held_clamp_min = implicit.clamp_min(1.0)
        return -(held_clamp_min if hard else implicit + (held_clamp_min - implicit).detach()).log().sum()

    for rho, weight in ((0.8, 0.25), (1.0, 1 / 3), (1.2, 0.4), (4.2, 1.4)):
        at = torch.tensor([math.log(rho)], dtype=torch.float64)
        assert float(slope(lambda x: loss(x, hard=False), at)) == pytest.approx(weight, abs=1e-6)
        assert float(loss(at, hard=False)) <= 1e-15
    grown = torch.tensor([math.log(1.2)], dtype=torch.float64)
    assert float(slope(lambda x: loss(x, hard=True), grown)) == 0.0


def test_a_temperature_on_one_side_of_a_regression() -> None:
    """REBEL's (D / eta - R)^2 and the released (D - eta R)^2 have one minimum and gradients eta^2 apart."""
    eta, d, r = 0.5, 0.3, 1.0
    paper, released = 2 / eta * (d / eta - r), 2 * (d - eta * r)
    assert released == pytest.approx(eta**2 * paper)


def test_tokens_left_out_of_the_sum_and_not_of_its_divisor() -> None:
    """VPPO and EARL train a share of an answer's tokens and divide by all of them: the loss shrinks with the share."""
    kept_values = torch.tensor([0.0, 1.0, 0.0, 0.0, 1.0], dtype=torch.float64)
    full_slope = slope(lambda x: -(CREDIT * x).mean())
    some = slope(lambda x: -(kept_values * CREDIT * x).mean())
    assert some.tolist() == (kept_values * full_slope).tolist()
    assert float(some.abs().sum() / full_slope.abs().sum()) == pytest.approx(0.4)


def test_a_median_that_is_the_majority() -> None:
    """BRRL centres by the group's median: with binary rewards whoever is in the majority has no credit."""
    rewards = [1.0, 1.0, 1.0, 0.0]
    median = sorted(rewards)[(len(rewards) - 1) // 2]
    assert [r - median for r in rewards] == [0.0, 0.0, 0.0, -1.0]
    mean = sum(rewards) / 4
    assert [r - mean for r in rewards] == [0.25, 0.25, 0.25, -0.75]


def test_labels_by_equality() -> None:
    """REAL's code takes reward == 1 and reward == 0: an answer of reward 0.5 is in neither class, and says nothing."""
    rewards = [1.0, 0.5, 0.0]
    assert [r == 1 for r in rewards] == [True, False, False] and [r == 0 for r in rewards] == [False, False, True]
    forest = Forest.from_completions([[1]], [[[2], [3], [4]]], [rewards])
    x = torch.tensor([-1.0, -1.0, -1.0], dtype=torch.float64, requires_grad=True)
    gxpo.method("real", {"objective.success_at": 0.5}).loss(forest, gxpo.PolicyTokens(x, x.detach())).value.backward()
    assert x.grad is not None and bool((x.grad != 0).all())


@pytest.mark.parametrize("estimate", ["k2", "k3", "rho log rho"])
def test_terms_that_vanish_where_the_policy_has_not_moved(estimate: str) -> None:
    """A penalty to the policy at the start of the step, MDPO's among them, has no gradient at the first update, nor has
    FIPO a weight other than 1: with one update a step both are the loss without them."""

    def penalty(x: Tensor) -> Tensor:
        d = x - OLD
        if estimate == "k2":
            return (d.square() / 2).mean()
        return (d.exp() - 1 - d).mean() if estimate == "k3" else ((d.exp() * d) - d).mean()

    assert slope(penalty, OLD).abs().max() < 1e-15 < slope(penalty, NEW).abs().max()
    future = torch.zeros(5, dtype=torch.float64)  # FIPO's sums of later log-ratios
    assert future.exp().clamp(1.0, 1.2).tolist() == [1.0] * 5


def test_ipo_of_sums_and_of_means() -> None:
    policy, reference, length = (-10.0, -14.0), (-11.0, -13.0), (5, 6)
    scores = [p - r for p, r in zip(policy, reference, strict=True)]
    means = [s / n for s, n in zip(scores, length, strict=True)]
    assert (scores[0] - scores[1] - 5) ** 2 == pytest.approx(9.0)
    assert (means[0] - means[1] - 5) ** 2 == pytest.approx(21.467778, abs=6e-7)
    tokens = torch.cat([torch.full((n,), s / n).double() for s, n in zip(scores, length, strict=True)])
    for settings, loss in (({}, 9.0), ({"objective.length_mean": True}, 21.467778)):
        forest = gxpo.Forest.from_completions([[1]], [[[2] * n for n in length]], [[1.0, 0.0]])
        pol = gxpo.PolicyTokens(tokens, tokens, reference_logprob=torch.zeros(11).double())
        method = gxpo.method("ipo", {**settings, "objective.pairs": "outcome"})
        assert float(method.loss(forest, pol).value) == pytest.approx(loss, abs=6e-7)


def test_a_discount_without_its_first_factor() -> None:
    gamma, n = 0.7, 3
    cut = [(1 - gamma ** (n - t)) / (1 - gamma**n) for t in range(n)]
    assert cut == pytest.approx([1, 0.776256, 0.456621], abs=1e-6)
    assert [gamma**t * x for t, x in enumerate(cut)] == pytest.approx([1, 0.543379, 0.223744], abs=1e-6)


def test_a_target_that_no_score_can_reach() -> None:
    margin = torch.tensor([-0.5, 0.0, 0.5], dtype=torch.float64, requires_grad=True)
    ((margin - 1 / (2 * 0.0075)) ** 2).sum().backward()
    assert margin.grad is not None and torch.allclose(margin.grad, torch.full_like(margin.grad, -133.3), atol=1.1)
