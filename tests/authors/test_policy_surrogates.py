"""VESPO, Clip-Cov, KL-Cov, DPPO and the discovered drift against what their authors' code computes, restated in loops
over rows of tokens. Rows are of unequal length; log-probs, behaviour and advantages were chosen by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch

import gxpo
from gxpo.forest.forest import Forest

F64 = torch.float64
Rows = Sequence[Sequence[float]]

#      log-probs of the policy, of who sampled; one advantage a row: right twice, average, wrong
NEW = [[-0.9, -0.2, -1.6], [-0.05, -2.5], [-0.7], [-3.0, -0.4, -0.1, -1.2]]
OLD = [[-1.2, -0.1, -1.5], [-0.6, -2.2], [-0.9], [-1.1, -0.9, -0.35, -1.0]]
CREDIT = [1.5, 0.5, 0.0, -1.25]


def of_gxpo(
    name: str, keys: Mapping[str, Any] | None = None, new: Rows = NEW, old: Rows = OLD, credit: Any = CREDIT
) -> tuple[float, list[float]]:
    """Value and slopes of the whole loss of a method at given advantages: one for each row, or one for each token."""
    forest = Forest.from_completions([[1]], [[[2] * len(row) for row in new]], [0.0] * len(new))
    x = torch.tensor([v for row in new for v in row], dtype=F64, requires_grad=True)
    policy = gxpo.PolicyTokens(x, torch.tensor([v for row in old for v in row], dtype=F64))
    each = credit if isinstance(credit[0], Sequence) else [[a] * len(row) for a, row in zip(credit, new, strict=True)]
    credit_P = torch.tensor([a for row in each for a in row], dtype=F64)
    loss = gxpo.method(name, keys).loss(forest, policy, advantages=credit_P).value
    (slopes,) = torch.autograd.grad(loss, x)
    return float(loss.detach()), slopes.tolist()


def slopes_of(loss: Callable[[Rows], float], width: float = 1e-6) -> list[float]:
    """Central differences of a restated loss; where it holds a weight fixed, it is given the weight from outside."""
    actual = []
    for i, row in enumerate(NEW):
        for t in range(len(row)):
            sides = []
            for sign in (1, -1):
                moved = [list(r) for r in NEW]
                moved[i][t] += sign * width
                sides.append(loss(moved))
            actual.append((sides[0] - sides[1]) / (2 * width))
    return actual


# ---------------------------------------------------------------- VESPO
def vespo(new: Rows, old: Rows, credit: Sequence[float]) -> tuple[float, list[float]]:
    """Loss and slopes: the weight of a row, from the sum of its log-ratios, is a constant."""
    total, n, slopes = 0.0, sum(map(len, new)), []
    for row, below, a in zip(new, old, credit, strict=True):
        summed = 0.0
        for p, q in zip(row, below, strict=True):
            summed += min(max(p - q, -20.0), 20.0)
        w = math.exp(min(max(summed, -20.0), 20.0))
        k, decay = (2.0, 3.0) if a >= 0 else (3.0, 2.0)
        phi = math.exp(decay + k * math.log(max(w, 1e-8)) - decay * w)
        for p in row:
            total += -phi * a * p / n
            slopes.append(-phi * a / n)
    return total, slopes


FAR = [[-30.0, -0.2, -1.6], [-0.05, -9.5], [-0.7], [-0.1, -0.4, -0.1, -1.2]]
PAST = [[-1.2, -0.1, -1.5], [-30.0, -20.2], [-0.9], [-9.1, -8.9, -0.35, -9.0]]


@pytest.mark.parametrize(("new", "old"), [(NEW, OLD), (FAR, PAST)], ids=["near", "far"])
def test_vespo(new: Rows, old: Rows) -> None:
    """FloyedShen/VESPO@aa1f3045c346 recipe/vespo/code/core_algos.py, lines 84-154, with the constants of their scripts
    (and of the function: 2, 3, 3, 2); aggregation `token-mean`. Far: log W of -29.9, 40.1 and 24.4, held at 20."""
    loss, slopes = vespo(new, old, CREDIT)
    actual, gradient = of_gxpo("vespo", new=new, old=old)
    assert actual == pytest.approx(loss, abs=1e-9) and gradient == pytest.approx(slopes, abs=1e-9)


def test_vespo_over_the_policy_that_trained() -> None:
    """In the same file the mismatch enters as a sum of logarithms: pi / old times old / sampler is pi / sampler. Their
    synchronous scripts give no rollout weights, and pi / old is left."""
    middle = [[q + d for q, d in zip(row, (0.1, -0.2, 0.3, 0.05), strict=False)] for row in OLD]
    x = torch.tensor([v for row in NEW for v in row], dtype=F64)
    forest = Forest.from_completions([[1]], [[[2] * len(row) for row in NEW]], [0.0] * len(NEW))
    credit_P = torch.tensor([a for a, row in zip(CREDIT, NEW, strict=True) for _ in row], dtype=F64)
    sampler, proximal = (torch.tensor([v for row in r for v in row], dtype=F64) for r in (OLD, middle))
    policy = gxpo.PolicyTokens(x, sampler, proximal_logprob=proximal)
    for over, below in (("behaviour", OLD), ("proximal", middle)):
        m = gxpo.method("vespo", {"objective.ratio_over": over})
        loss = float(m.loss(forest, policy, advantages=credit_P).value)
        assert loss == pytest.approx(vespo(NEW, below, CREDIT)[0], abs=1e-9)


# ---------------------------------------------------------------- Clip-Cov, KL-Cov
# advantages by token, so that covariances lie on all sides of 1 and 5
SPREAD = [[3.0, -2.0, 0.5], [4.0, -1.0], [0.0], [-3.0, 2.5, -0.5, 1.0]]


def covariances(new: Rows, credit: Rows) -> list[float]:
    flat, a = [p for row in new for p in row], [x for row in credit for x in row]
    m, n = sum(a) / len(a), sum(flat) / len(flat)
    return [(x - m) * (p - n) for x, p in zip(a, flat, strict=True)]


def test_clip_cov_where_every_candidate_is_taken() -> None:
    """PRIME-RL/Entropy-Mechanism-of-RL@88505792fd97 verl/trainer/ppo/core_algos.py, lines 469-517, and the clip of
    recipe/dapo/7b_clip_cov.sh: ratios are held in [0, 2]. With a share of 1 the draw takes all whose covariance lies
    between 1 and 5 and whom the clip leaves alone; the ratio of the first token of the last row, 0.15, is not cut."""
    covariance, n = covariances(NEW, SPREAD), sum(map(len, NEW))
    total, slopes, dropped, i = 0.0, [], [], 0
    for row, below, credit in zip(NEW, OLD, SPREAD, strict=True):
        for p, q, a in zip(row, below, credit, strict=True):
            rho = math.exp(p - q)
            plain, clipped_term = -a * rho, -a * min(max(rho, 0.0), 2.0)
            out = 1.0 < covariance[i] < 5.0 and not clipped_term > plain
            dropped.append(out)
            total += 0.0 if out else max(plain, clipped_term) / n
            slopes.append(0.0 if out or clipped_term > plain else -a * rho / n)
            i += 1
    assert sum(dropped) == 3 and max(covariance) > 1 > min(covariance)
    actual, gradient = of_gxpo("clip_cov@paper", {"objective.covariance_share": 1.0}, credit=SPREAD)
    assert actual == pytest.approx(total, abs=1e-9) and gradient == pytest.approx(slopes, abs=1e-9)


def test_clip_cov_by_default_drops_one_of_the_candidates() -> None:
    """Of 10 tokens a share of 2e-4 is max(int(0.002), 1) = 1, drawn at random there; without it the loss is the sum
    over the others, and all 10 stay in the denominator."""
    _, everything = of_gxpo("clip_cov@paper", {"objective.covariance_low": 4.99}, credit=SPREAD)
    _, gradient = of_gxpo("clip_cov@paper", credit=SPREAD)
    gone = [i for i, (x, y) in enumerate(zip(everything, gradient, strict=True)) if x != y]
    assert len(gone) == 1 and gradient[gone[0]] == 0.0 and 1.0 < covariances(NEW, SPREAD)[gone[0]] < 5.0


def test_a_ratio_beyond_two_is_cut_and_one_of_a_seventh_is_not() -> None:
    """The scripts' clip of 1 to both sides: [1 - 1, 1 + 1]. PPO's, 0.2 and 0.2, cuts both tokens of the two rows."""
    columns = {"new": [[-0.1], [-3.0]], "old": [[-1.0], [-1.1]], "credit": [1.0, -1.0]}
    none = {"objective.covariance_low": 4.99}  # nothing is drawn
    loss, slopes = of_gxpo("clip_cov@paper", none, **columns)
    assert slopes == pytest.approx([0.0, math.exp(-1.9) / 2])
    assert loss == pytest.approx((-2.0 + math.exp(-1.9)) / 2)
    _, narrow = of_gxpo("clip_cov", none, **columns)
    assert narrow == [0.0, 0.0]


def test_kl_cov() -> None:
    """The same file, lines 426-467: the max(1, int(n k / 100)) tokens of greatest covariance add |log rho|, nothing is
    clipped. k is 0.2 for 7B, 0.02 for 32B; here 30 (percent), three tokens of ten."""
    covariance, n = covariances(NEW, SPREAD), sum(map(len, NEW))
    greatest = sorted(range(n), key=lambda i: -covariance[i])[: max(1, int(n * 30 / 100))]
    total, slopes, i = 0.0, [], 0
    for row, below, credit in zip(NEW, OLD, SPREAD, strict=True):
        for p, q, a in zip(row, below, credit, strict=True):
            rho, own_value = math.exp(p - q), float(i in greatest)
            total += (-a * rho + own_value * abs(p - q)) / n
            slopes.append((-a * rho + own_value * math.copysign(1.0, p - q)) / n)
            i += 1
    keys = {"objective.surrogate": "covariance_penalty", "objective.covariance_share": 0.3}
    actual, gradient = of_gxpo("clip_cov", keys, credit=SPREAD)
    assert actual == pytest.approx(total, abs=1e-9) and gradient == pytest.approx(slopes, abs=1e-9)


# ---------------------------------------------------------------- DPPO
def dppo(
    mode: str, new: Rows, old: Rows, credit: Sequence[float], most: float, bound: float
) -> tuple[float, list[float]]:
    total, n, slopes = 0.0, sum(map(len, new)), []
    for row, below, a in zip(new, old, credit, strict=True):
        for lp, lq in zip(row, below, strict=True):
            p, q = math.exp(lp), math.exp(lq)
            if mode == "tv":
                high, low = p - q > bound, p - q < -bound
            else:
                kl = q * (lq - lp) + (1 - q) * math.log((1.0 - q + 1e-8) / (1.0 - p + 1e-8))
                high, low = kl > bound and p > q, kl > bound and p < q
            mask = 0.0 if (high if a > 0 else low) else 1.0
            rho = min(math.exp(min(lp - lq, 20.0)), most)
            total += -a * rho * mask * lp / n
            slopes.append(-a * rho * mask / n)
    return total, slopes


EDGES = (
    # from .7 to .95, from 1e-4 to .02 (a ratio of 200), up again from .2 to .25; then down from .9 to .3
    [[math.log(0.95), math.log(0.02), math.log(0.25)], [math.log(0.5), 0.0], [math.log(0.3), math.log(0.05)]],
    [[math.log(0.7), math.log(1e-4), math.log(0.2)], [math.log(0.9), -1e-9], [math.log(0.9), math.log(0.08)]],
)


@pytest.mark.parametrize(("mode", "bound"), [("tv", 0.2), ("tv", 0.15), ("kl", 0.05), ("kl", 0.2)])
@pytest.mark.parametrize("most", [20.0, 3.0])
def test_dppo(mode: str, bound: float, most: float) -> None:
    """sail-sg/Stable-RL@c6af1d119c0f verl/trainer/ppo/core_algos.py, lines 1160-1200 and 1241-1308 (`dppo_binary_tv`,
    `dppo_binary_kl`). Bounds are the trainer's clip widths, the ratio's `clip_ratio_c`: 3 in
    verl/workers/config/actor.py, line 143, 1e4 in their script in verl, examples/dppo_trainer/run_qwen30b_dppo.sh."""
    keys = {f"objective.divergence_{side}": bound for side in ("low", "high")}
    keys |= {"objective.divergence": mode, "objective.ratio_max": most}
    loss, slopes = dppo(mode, *EDGES, [1.5, 0.5, -1.25], most, bound)
    assert 2 <= slopes.count(0.0) <= 3
    actual, gradient = of_gxpo("dppo_divergence", keys, *EDGES, [1.5, 0.5, -1.25])
    assert actual == pytest.approx(loss, abs=1e-9) and gradient == pytest.approx(slopes, abs=1e-9)


def test_dppos_defaults() -> None:
    """The script's bound for total variation is 0.15; from 0.2 to 0.36 is within 0.2 and not within it."""
    assert of_gxpo("dppo_divergence")[1] == pytest.approx(dppo("tv", NEW, OLD, CREDIT, 20.0, 0.2)[1], abs=1e-12)
    row = {"new": [[math.log(0.36)]], "old": [[math.log(0.2)]], "credit": [1.0]}
    assert of_gxpo("dppo_divergence@paper", {"objective.horizon": 1.0}, **row)[1] == [0.0]
    for name in ("dppo_divergence", "dppo_divergence@verl"):
        assert of_gxpo(name, **row)[1] == pytest.approx([-1.8])
    paper = gxpo.method("dppo_divergence@paper")
    assert paper.terms["policy"].aggregate == "sequence_sum" and paper.terms["policy"].surrogate.ratio_max == 1e4


# ---------------------------------------------------------------- discovered policy optimisation
def test_discovered_policy_optimisation() -> None:
    """luchris429/purejaxrl@31756b197773 purejaxrl/dpo_continuous_action.py, lines 207-220; constants 2 and 0.6 of lines
    310-311; a mean over steps. Slopes by central differences of the restated loss."""

    def loss(new: Rows) -> float:
        total, n = 0.0, sum(map(len, new))
        for row, below, a in zip(new, OLD, CREDIT, strict=True):
            for p, q in zip(row, below, strict=True):
                rho = math.exp(p - q)
                up, down = (rho - 1.0) * a, (p - q) * a
                first = max(up - 2.0 * math.tanh(up / 2.0), 0.0)
                second = max(down - 0.6 * math.tanh(down / 0.6), 0.0)
                total += -(rho * a - (first if a >= 0 else second)) / n
        return total

    actual, gradient = of_gxpo("dpo_discovered")
    assert actual == pytest.approx(loss(NEW), abs=1e-9) and gradient == pytest.approx(slopes_of(loss), abs=1e-8)
