"""Dr. GRPO, PSR and NSR, Lite PPO and COPO against what their authors' code computes, restated in loops over rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch

import gxpo
from gxpo.forest.forest import Forest

F64 = torch.float64
Rows = Sequence[Sequence[float]]

# three prompts of four answers of unequal length: one solved now and then, all right, all wrong
REWARD = [[1.0, 0.0, 0.0, 1.0], [1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]]
LENGTH = [[3, 1, 2, 4], [2, 2, 1, 3], [1, 5, 2, 2]]
FLAT = [n for row in LENGTH for n in row]
SCORE = [r for row in REWARD for r in row]
GROUP = [g for g, row in enumerate(REWARD) for _ in row]
# log-ratios that leave the clip on both sides
GAPS = [[0.13 * ((7 * i + 3 * t) % 9 - 4) for t in range(n)] for i, n in enumerate(FLAT)]
OLD = [[-0.3 - 0.2 * ((2 * i + t) % 5) for t in range(n)] for i, n in enumerate(FLAT)]


def forest_of(reward: Rows = REWARD, length: Sequence[Sequence[int]] = LENGTH) -> Forest:
    answers, flat = [[[2] * n for n in row] for row in length], [r for row in reward for r in row]
    return Forest.from_completions([[1]] * len(reward), answers, flat, success=flat)


def run(name: str, keys: Mapping[str, Any] | None = None) -> tuple[list[float], float, list[float]]:
    """Credit of each row, loss, slopes; by gxpo."""
    forest = forest_of()
    below = torch.tensor([q for row in OLD for q in row], dtype=F64)
    x = (below + torch.tensor([d for row in GAPS for d in row], dtype=F64)).requires_grad_()
    m = gxpo.method(name, keys)
    forest = m.shaped(forest)
    credit = m.advantages(forest)
    loss = m.loss(forest, gxpo.PolicyTokens(x, below), advantages=credit).value
    (slopes,) = torch.autograd.grad(loss, x)
    first = [int((forest.path_trajectory == i).nonzero()[0]) for i in range(forest.n_trajectories)]
    return credit[first].tolist(), float(loss.detach()), slopes.tolist()


def clipped(credit: Sequence[float], scale: Sequence[float], width: float = 0.2) -> tuple[float, list[float]]:
    """Sum over tokens of scale * max(-A rho, -A clip(rho)), `scale` by row, and its slopes."""
    total, slopes = 0.0, []
    for a, row, s in zip(credit, GAPS, scale, strict=True):
        for d in row:
            rho = math.exp(d)
            plain, clipped_term = -a * rho, -a * min(max(rho, 1.0 - width), 1.0 + width)
            total += s * max(plain, clipped_term)
            slopes.append(s * -a * rho if plain >= clipped_term else 0.0)
    return total, slopes


# ---------------------------------------------------------------- Dr. GRPO
def test_dr_grpo() -> None:
    """sail-sg/understand-r1-zero@dfca49dd460e train_zero_math.py, lines 286-310 (rewards less the group's mean; sums
    over tokens by `generate_max_length`, 3000 in examples/qwen2.5-math-7b.sh), and the loss of the learner that it
    builds on, sail-sg/oat@c1a074c oat/algorithms/ppo.py, lines 528-568: the clip, the sum, a mean over answers."""
    expected = []
    for row in REWARD:
        expected += [r - sum(row) / len(row) for r in row]
    loss, slopes = clipped(expected, [1 / 3000 / len(FLAT)] * len(FLAT))
    credit, actual, gradient = run("dr_grpo", {"objective.horizon": 3000.0})
    assert credit == pytest.approx(expected, abs=1e-12)
    assert actual == pytest.approx(loss, abs=1e-12) and gradient == pytest.approx(slopes, abs=1e-12)


# ---------------------------------------------------------------- PSR, NSR, W-REINFORCE
def test_w_reinforce() -> None:
    """TianHongZXY/RLVR-Decomposed@a5d4e7c1df60 verl/trainer/ppo/core_algos.py, lines 111-154 ("weighted") and 319-364:
    the score of a right answer times `positive_advantage_weight` (0.1), 0 - 1 for a wrong one; the clip at 0.2, a mean
    over tokens. Their sum of discounted rewards has one reward at the end and gamma 1."""
    expected = [r * 0.1 if r == 1.0 else r - 1.0 for r in SCORE]
    loss, slopes = clipped(expected, [1 / sum(FLAT)] * len(FLAT))
    _, actual, gradient = run("psr_nsr")
    assert actual == pytest.approx(loss, abs=1e-12) and gradient == pytest.approx(slopes, abs=1e-12)


@pytest.mark.parametrize(("mode", "positive", "negative"), [("positive", 1.0, 0.0), ("negative", 0.0, 1.0)])
def test_psr_and_nsr_up_to_their_denominator(mode: str, positive: float, negative: float) -> None:
    """The same file, lines 143-146, and ray_trainer.py, lines 1191-1200: PSR keeps the right rows, NSR the wrong ones,
    and the mean is over their tokens. In gxpo the others weigh 0 and count: the loss is less by the share of tokens."""
    is_kept = [r == (mode == "positive") for r in SCORE]
    tokens = sum(n for n, own_value in zip(FLAT, is_kept, strict=True) if own_value)
    expected = [r if mode == "positive" else r - 1.0 for r in SCORE]
    loss, slopes = clipped(expected, [float(own_value) / tokens for own_value in is_kept])
    _, actual, gradient = run("psr_nsr", {"weight.by_sign.positive": positive, "weight.by_sign.negative": negative})
    share = tokens / sum(FLAT)
    assert actual == pytest.approx(share * loss, abs=1e-12)
    assert gradient == pytest.approx([share * s for s in slopes], abs=1e-12)


def test_psr_nsr_entropy_bonus_is_in_the_paper_preset() -> None:
    """verl/trainer/config/ppo_trainer.yaml: `entropy_coeff: 0.001`, which their run scripts leave as it is."""
    assert gxpo.method("psr_nsr@paper").terms["entropy"].coef == 1e-3 and "entropy" not in gxpo.method("psr_nsr").terms


# ---------------------------------------------------------------- Lite PPO
def test_lite_ppo() -> None:
    """alibaba/ROLL@8eb27cc2dc34 roll/utils/functionals.py, lines 564-600 (`norm_mean_type: group`, `norm_std_type:
    batch`: torch's std of all rewards, + 1e-6), actor_worker.py, lines 80-83, and `token-mean` of lines 253-256."""
    mean = sum(SCORE) / len(SCORE)
    std = math.sqrt(sum((r - mean) ** 2 for r in SCORE) / (len(SCORE) - 1))
    expected = []
    for row in REWARD:
        expected += [(r - sum(row) / len(row)) / (std + 1e-6) for r in row]
    loss, slopes = clipped(expected, [1 / sum(FLAT)] * len(FLAT))
    credit, actual, gradient = run("lite_ppo")
    assert credit == pytest.approx(expected, abs=1e-12)
    assert actual == pytest.approx(loss, abs=1e-12) and gradient == pytest.approx(slopes, abs=1e-12)


# ---------------------------------------------------------------- COPO
# answers of six groups of six: entropies from 0 to log2 6 = 2.585 bits; rewards with failures, one group of one
ANSWERS = ["aaaaaa", "aaabbb", "abcdef", "aabbcd", "bbbbbb", "a"]
REWARDS = [
    [1.0, 1.0, 1.0, 1.0, 1.0, 1.0],
    [1.0, 1.0, 1.0, 0.0, 0.0, 0.0],
    [0.0, 0.0, 0.0, 0.0, 0.0, 1.0],
    [0.5, 0.5, 0.0, 0.0, 1.0, 0.0],
    [0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
    [0.25],
]


def copo() -> tuple[list[float], list[float], list[float]]:
    """Advantage inside the group, between groups, entropy in bits; of each row."""
    inside, between, bits = [], [], []
    means = [sum(row) / len(row) for row in REWARDS]
    middle = sum(means) / len(means)
    spread = math.sqrt(sum((m - middle) ** 2 for m in means) / (len(means) - 1))
    for row, message, own_value in zip(REWARDS, ANSWERS, means, strict=True):
        mean, std = own_value, 0.0
        if len(row) > 1:
            std = math.sqrt(sum((r - mean) ** 2 for r in row) / (len(row) - 1))
        entropy = 0.0
        for letter in sorted(set(message)):
            p = message.count(letter) / len(message)
            entropy -= p * math.log2(p + 1e-8)
        for r in row:
            # they take the mean of a lone answer as 0 and its std as 1: it is credited its reward; in gxpo nothing
            inside.append((r - mean) / (std + 1e-6) if len(row) > 1 else 0.0)
            between.append((own_value - middle) / (spread + 1e-6))
            bits.append(entropy)
    return inside, between, bits


def copo_of_gxpo(**keys: Any) -> tuple[Forest, gxpo.methods.method.Method, list[float]]:
    forest = forest_of(REWARDS, [[1] * len(row) for row in REWARDS])
    cluster = torch.tensor([26 * g + ord(x) - ord("a") for g, message in enumerate(ANSWERS) for x in message])
    m = gxpo.method("copo", {f"credit.{k}": v for k, v in keys.items()})
    return forest, m, m.advantages(forest, {"answer_cluster": cluster}).tolist()


@pytest.mark.parametrize(
    ("keys", "k", "b", "zero"),
    [
        ({}, 20.0, 1.5, False),
        ({"steepness": 20.0, "midpoint": 0.5}, 20.0, 0.5, False),  # "only-soft"
        ({"steepness": 5.0, "midpoint": 1.0, "failures": "between"}, 5.0, 1.0, True),  # run_copo.sh, "soft-with-zero"
    ],
    ids=["paper", "only-soft", "soft-with-zero"],
)
def test_copo(keys: dict[str, Any], k: float, b: float, zero: bool) -> None:
    """hijih/copo-code@f66883f verl/trainer/ppo/core_algos.py: `compute_score_global` (entropy by log2, plus 1e-8),
    `compute_grpo_outcome_advantage_with_global`, and the weights of `compute_policy_loss_with_global`, which multiply
    two losses; where the ratio is 1 a loss is -A. The 1e-8 moves the weights by 1e-7 at most."""
    expected = []
    for inside, between, entropy, r in zip(*copo(), [r for row in REWARDS for r in row], strict=True):
        w = 1 / (1 + math.exp(-k * (entropy - b))) * (float(r != 0) if zero else 1.0)
        expected.append(w * inside + (1 - w) * between)
    assert copo_of_gxpo(**keys)[2] == pytest.approx(expected, abs=1e-6)


def test_copo_clipped_losses_are_one_where_their_signs_agree() -> None:
    """w l(A) + (1 - w) l(B) = l(w A + (1 - w) B) for the clipped loss l wherever A and B have one sign or nothing is
    clipped. Of A = 1 and B = -1, each by half, at a ratio of 1.7: -1.2 / 2 + 1.7 / 2 there, 0 here."""

    def loss(a: float, rho: float) -> float:
        return max(-a * rho, -a * min(max(rho, 0.8), 1.2))

    assert 0.5 * loss(1.0, 1.7) + 0.5 * loss(-1.0, 1.7) == pytest.approx(0.25) and loss(0.0, 1.7) == 0.0
    for inside, between, entropy in zip(*copo(), strict=True):
        w = 1 / (1 + math.exp(-20 * (entropy - 1.5)))
        for rho in (0.5, 0.9, 1.0, 1.1, 1.7):
            if inside * between >= 0 or 0.8 <= rho <= 1.2:
                both = w * loss(inside, rho) + (1 - w) * loss(between, rho)
                assert both == pytest.approx(loss(w * inside + (1 - w) * between, rho), abs=1e-12)


def test_entropy_in_nats_is_the_other_unit() -> None:
    inside, between, bits = copo()
    w = [1 / (1 + math.exp(-20 * (h * math.log(2) - 1.5))) for h in bits]
    expected = [v * a + (1 - v) * b for v, a, b in zip(w, inside, between, strict=True)]
    assert copo_of_gxpo(unit="nats")[2] == pytest.approx(expected, abs=1e-6)
