"""CAPO (curvature) as in luckeciano/stable-pg-llm@933fe01, restated over a whole vocabulary.

src/open_r1/grpo_entropy_trainer.py: _compute_token_level_gradients, _compute_and_log_hessian_coefficient and
_compute_and_log_fisher_curvature at token level, _compute_hessian_token_mask with symmetric clipping,
_compute_fisher_token_mask. Recipe: grpo_adam_fisher_mask_token_1e-4_hessian_mask_token_0.01. Their effective gradient G
is an argument here; gxpo's is sign(g).
"""

from __future__ import annotations

import math
import random

import pytest
import torch

import gxpo
from gxpo.algorithms.weighting.curvature import predicted
from gxpo.forest.forest import Forest

F64 = torch.float64


def theirs(logits: list[float], h: list[float], action: int, a: float, lr: float) -> tuple[float, float]:
    """(m_H, m_F) of a token, in loops: g = A (e_a - pi) h^T, G = sign(g)."""
    top = max(logits)
    weights = [math.exp(x - top) for x in logits]
    pi = [w / sum(weights) for w in weights]
    v = [(i == action) - p for i, p in enumerate(pi)]
    g = [[a * x * y for y in h] for x in v]
    big = [[math.copysign(1.0, x) if x else 0.0 for x in row] for row in g]
    u = [sum(x * y for x, y in zip(row, h, strict=True)) for row in big]
    first = sum(x * y for x, y in zip(v, u, strict=True)) ** 2
    spread = sum(p * x * x for p, x in zip(pi, u, strict=True)) - sum(p * x for p, x in zip(pi, u, strict=True)) ** 2
    hessian = a * (first - spread)
    grad = sum(x * y for left, right in zip(g, big, strict=True) for x, y in zip(left, right, strict=True))
    return lr * grad + 0.5 * hessian * lr**2, 0.5 * first * lr**2


@pytest.fixture
def drawn() -> list[tuple[list[float], list[float], int, float]]:
    rng = random.Random(2)
    rows = []
    for _ in range(8):
        logits, h = [rng.uniform(-3, 3) for _ in range(7)], [rng.gauss(0, 2) for _ in range(5)]
        rows.append((logits, h, rng.randrange(7), rng.choice([0.75, -0.25, 1.3, -1.1])))
    return rows


def p_of(logits: list[float], action: int) -> float:
    return math.exp(logits[action]) / sum(math.exp(x) for x in logits)


def test_the_two_predictions(drawn: list) -> None:
    """|h|_1, p and A are all that is left of the vocabulary where G is sign(g)."""
    lr = 0.03
    p = torch.tensor([p_of(logits, action) for logits, _, action, _ in drawn], dtype=F64)
    size = torch.tensor([sum(map(abs, h)) for _, h, _, _ in drawn], dtype=F64)
    a = torch.tensor([a for *_, a in drawn], dtype=F64)
    gain, shift = predicted(p, size, a, lr)
    expected = [theirs(*row, lr) for row in drawn]
    assert gain.tolist() == pytest.approx([x for x, _ in expected], abs=1e-9)
    assert shift.tolist() == pytest.approx([x for _, x in expected], abs=1e-9)


def test_the_mask_of_fixed_thresholds(drawn: list) -> None:
    """Kept is |m_H| < tau_H and m_F < tau_F, strictly."""
    lr, expected = 0.02, [theirs(*row, 0.02) for row in drawn]
    most_gain = sorted(abs(x) for x, _ in expected)[5] + 1e-9
    most_shift = sorted(x for _, x in expected)[4] + 1e-9
    keys = {"lr": lr, "max_gain": most_gain, "max_shift": most_shift}
    m = gxpo.method("capo_curvature", {f"weight.curvature.{k}": v for k, v in keys.items()})
    forest = Forest.from_completions([[1]], [[[2 + i] for i in range(8)]], [0.0] * 8)
    signals = {
        "proximal_logprob": torch.tensor([math.log(p_of(logits, action)) for logits, _, action, _ in drawn], dtype=F64),
        "state_norm": torch.tensor([sum(map(abs, h)) for _, h, _, _ in drawn], dtype=F64),
    }
    actual = m.token_weights(forest, torch.tensor([a for *_, a in drawn], dtype=F64), signals)
    masks = [float(abs(x) < most_gain and y < most_shift) for x, y in expected]
    assert actual.tolist() == masks and 0 < sum(masks) < 8


def test_the_recipe() -> None:
    part = gxpo.method("capo_curvature@paper").weights["curvature"]
    assert [part.options[name] for name in ("max_gain", "max_shift", "lr")] == [0.01, 1e-4, 1.5e-5]
