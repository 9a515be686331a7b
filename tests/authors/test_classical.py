"""DPO, MDPO and TRPO against what their authors' code computes: pairs in loops, expectations by enumeration, the step
of a two-armed bandit by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import gxpo
from gxpo.forest.forest import Forest
from gxpo.learning.natural_gradient import NaturalGradient

F64 = torch.float64


# ---------------------------------------------------------------- DPO
def dpo_pair(better: float, worse: float, beta: float, smoothing: float, ipo: bool) -> tuple[float, float]:
    """Loss of a pair from its two sums of log policy - log reference, and its slope in their difference."""
    h = better - worse
    if ipo:
        return (h - 1 / (2 * beta)) ** 2, 2 * (h - 1 / (2 * beta))
    right, wrong = 1 / (1 + math.exp(-beta * h)), 1 / (1 + math.exp(beta * h))
    loss = -math.log(right) * (1 - smoothing) - math.log(wrong) * smoothing
    return loss, -beta * wrong * (1 - smoothing) + beta * right * smoothing


@pytest.mark.parametrize(
    ("keys", "beta", "smoothing", "ipo"),
    [
        ({}, 0.1, 0.0, False),
        ({"objective.beta": 0.5, "objective.label_smoothing": 0.2}, 0.5, 0.2, False),
        ({"objective.form": "ipo"}, 0.1, 0.0, True),
    ],
    ids=["dpo", "cdpo", "ipo"],
)
def test_dpo(keys: dict[str, Any], beta: float, smoothing: float, ipo: bool) -> None:
    """eric-mitchell/direct-preference-optimization@f8b8c0f49dc9 trainers.py, `preference_loss` and `_get_batch_logps`
    (a sum over the answer's tokens). The batch is a list of given pairs; here it is made of verdicts: of two right and
    one wrong answer two pairs, of one and one a pair, of two wrong ones none. A group counts as one."""
    new = [[-0.2, -1.0], [-0.7], [-0.4, -0.1, -2.0], [-1.5], [-0.3, -0.9], [-0.5], [-0.8]]
    ref = [[-0.5, -0.8], [-0.1], [-0.6, -0.3, -1.0], [-2.5], [-0.1, -0.2], [-0.9], [-0.1]]
    right = [1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0]
    forest = Forest.from_completions(
        [[1]] * 3,
        [[[2] * len(row) for row in new[:3]], [[2] * len(row) for row in new[3:5]], [[2], [2]]],
        right,
        success=right,
    )
    score = [sum(p - q for p, q in zip(a, b, strict=True)) for a, b in zip(new, ref, strict=True)]
    total, slope = 0.0, [0.0] * 7
    for pairs in ([(0, 2), (1, 2)], [(4, 3)], []):
        for b, w in pairs:
            loss, d = dpo_pair(score[b], score[w], beta, smoothing, ipo)
            total += loss / len(pairs) / 3
            slope[b] += d / len(pairs) / 3
            slope[w] -= d / len(pairs) / 3
    x = torch.tensor([v for row in new for v in row], dtype=F64, requires_grad=True)
    reference = torch.tensor([v for row in ref for v in row], dtype=F64)
    policy = gxpo.PolicyTokens(x, reference, reference_logprob=reference)
    actual = gxpo.method("dpo", keys).loss(forest, policy).value
    (slopes,) = torch.autograd.grad(actual, x)
    assert float(actual.detach()) == pytest.approx(total, abs=1e-12)
    assert slopes.tolist() == pytest.approx([slope[i] for i, row in enumerate(new) for _ in row], abs=1e-12)


# ---------------------------------------------------------------- MDPO
@pytest.mark.parametrize(("step", "steps", "t"), [(0, 4, 1.0), (3, 4, 0.25), (99, 100, 0.05)])
def test_mdpo(step: int, steps: int, t: float) -> None:
    """manantomar/Mirror-Descent-Policy-Optimization@c9bd3ba080e3 mdpo_on/mdpo.py, lines 162-195: the mean of ratio by
    advantage, less KL(new || old) between distributions over `learning_rate_ph`. Eight draws in the proportions of the
    old policy (1/2, 1/4, 1/4) make gxpo's sample means those expectations. The code's step size is 1 - (k - 1) / K
    (line 400), gxpo's 1 - k / K, from 0.05 on; the loss at one step size is what is compared."""
    old, drawn_values = [0.5, 0.25, 0.25], [0, 0, 0, 0, 1, 1, 2, 2]
    advantage, logits = [0.7, -0.4, -1.0], [0.3, -0.5, 0.1]
    partition = sum(map(math.exp, logits))
    new = [math.exp(v) / partition for v in logits]
    gain = sum(q * (p / q) * a for p, q, a in zip(new, old, advantage, strict=True))
    kl = sum(p * math.log(p / q) for p, q in zip(new, old, strict=True))
    # d/dz_j of sum_a p_a c_a is p_j (c_j - sum_a p_a c_a), c = A - log(p / q) / t; the 1 of p log p drops out
    c = [a - math.log(p / q) / t for p, q, a in zip(new, old, advantage, strict=True)]
    mean = sum(p * v for p, v in zip(new, c, strict=True))
    expected = [-p * (v - mean) for p, v in zip(new, c, strict=True)]

    m = gxpo.method("mdpo", {"objective.add.mirror_kl.total_steps": steps})
    m.terms["mirror_kl"].control.adjust({"step": step})
    forest = Forest.from_completions([[1]], [[[2]] * 8], [0.0] * 8)
    z = torch.tensor(logits, dtype=F64, requires_grad=True)
    x, below = torch.log_softmax(z, 0)[drawn_values], torch.tensor(old, dtype=F64).log()[drawn_values]
    loss = m.loss(
        forest, gxpo.PolicyTokens(x, below), advantages=torch.tensor(advantage, dtype=F64)[drawn_values]
    ).value
    (slopes,) = torch.autograd.grad(loss, z)
    assert float(loss.detach()) == pytest.approx(-gain + kl / t, abs=1e-9)
    assert slopes.tolist() == pytest.approx(expected, abs=1e-9)


def test_mdpo_is_a_mean_over_steps_not_over_episodes() -> None:
    """`tf.reduce_mean` over the batch of time steps: four tokens of a long answer weigh four times one of a short."""
    new, old = [-0.1, -0.9, -0.4, -1.1, -0.6], [-0.4, -0.5, -0.4, -1.0, -0.9]
    advantage = [1.0, 1.0, 1.0, 1.0, -2.0]
    total = 0.0
    for p, q, a in zip(new, old, advantage, strict=True):
        rho = math.exp(p - q)
        total += (-rho * a + rho * (p - q) - rho + 1) / 5
    forest = Forest.from_completions([[1]], [[[2] * 4, [2]]], [0.0, 0.0])
    policy = gxpo.PolicyTokens(torch.tensor(new, dtype=F64), torch.tensor(old, dtype=F64))
    loss = gxpo.method("mdpo").loss(forest, policy, advantages=torch.tensor(advantage, dtype=F64)).value
    assert float(loss) == pytest.approx(total, abs=1e-12)


def test_nothing_bounds_the_ratio_there_either() -> None:
    """Line 191: `tf.exp(logp - logp_old)` in float32, which is infinite from 88.7 on, and with it the gain and its
    gradient; only their KL, between distributions, would stay finite. gxpo's loss at 200 is as little finite, at -200
    it is; a learner leaves such a step out and counts it."""
    for gap, finite in ((200.0, False), (-200.0, True), (88.0, True)):
        x = torch.tensor([gap - 201.0, -1.0], dtype=torch.float32, requires_grad=True)
        below = torch.tensor([-201.0, -1.0], dtype=torch.float32)
        forest = Forest.from_completions([[1]], [[[2], [2]]], [0.0, 0.0])
        m = gxpo.method("mdpo", {"objective.add.mirror_kl.coef": 0.0})  # the gain alone
        loss = m.loss(forest, gxpo.PolicyTokens(x, below), advantages=torch.tensor([1.0, -1.0])).value
        (slopes,) = torch.autograd.grad(loss, x)
        assert bool(slopes.isfinite().all()) == finite


# ---------------------------------------------------------------- TRPO
class Bandit:
    """Two arms of probability 1/2, one logit z (of arm 0, against 0): what `NaturalGradient` asks of a learner."""

    def __init__(self, arms: list[int], credit: list[float]) -> None:
        self.z = torch.zeros(1, dtype=F64)
        self.sign = torch.tensor([1.0 if a == 0 else -1.0 for a in arms], dtype=F64)
        self.credit, self.tried = torch.tensor(credit, dtype=F64), list[float]()

    def logprob(self) -> torch.Tensor:
        return torch.nn.functional.logsigmoid(self.sign * self.z)

    def snapshot(self) -> dict[str, torch.Tensor]:
        return {"z": self.z.clone()}

    def restore(self, tensors: dict[str, torch.Tensor]) -> None:
        self.z = tensors["z"].clone()

    def evaluate(self, *_: Any) -> Any:
        from gxpo.parts.protocols import StepInfo

        self.tried.append(float(self.z))
        ratio = (self.logprob() - math.log(0.5)).exp()
        return StepInfo(empty=False, loss=-float((ratio * self.credit).mean()), outputs={"logprob": self.logprob()})

    def gradient(self, forest: Forest, credit: Any, weight: Any, slope: torch.Tensor | None = None) -> Any:
        by_logit = self.sign * torch.sigmoid(-self.sign * self.z)  # d log pi / dz
        if slope is None:
            slope = -self.credit * (self.logprob() - math.log(0.5)).exp() / len(self.sign)
        return {"z": (slope * by_logit).sum().reshape(1)}

    def record(self, forest: Forest, credit: Any, weight: Any, info: Any) -> Any:
        return info


def baselines_step(gain: float, reward: tuple[float, float], delta: float, damping: float = 0.1) -> float:
    """z after a step of openai's code on this bandit: exact distributions, slope `gain` of the surrogate at z = 0."""
    hessian = 0.25 + damping  # of KL at p = 1/2, per z
    x = gain / hessian
    shs = 0.5 * x * hessian * x
    full, size = x / math.sqrt(shs / delta), 1.0
    for _ in range(10):
        p = 1 / (1 + math.exp(-full * size))
        kl = 0.5 * math.log(0.5 / p) + 0.5 * math.log(0.5 / (1 - p))
        improve = p * reward[0] + (1 - p) * reward[1] - sum(reward) / 2
        if kl <= 1.5 * delta and improve >= 0:
            return full * size
        size *= 0.5
    return 0.0


@pytest.mark.parametrize("delta", [0.01, 1e-4, 4.0, 20.0])
def test_trpo(delta: float) -> None:
    """openai/baselines@ea25b9e8b234 baselines/trpo_mpi/trpo_mpi.py, lines 308-350: conjugate gradients on F + damping
    (0.1, defaults.py for MuJoCo), the length sqrt(2 delta / x'(F + damping) x), halved up to nine times until the mean
    KL(old || new) is within 1.5 delta and the surrogate no worse. Draws of both arms alike make gxpo's F, KL and
    surrogate the expectations. With delta 20 the first step is 10.7, whose KL of 4.6 is allowed."""
    reward = (1.0, -0.5)
    learner = Bandit([0, 1, 0, 1], [reward[0], reward[1]] * 2)
    forest = Forest.from_completions([[1]], [[[2]] * 4], [0.0] * 4)
    NaturalGradient(radius=delta).run(forest, learner.credit, torch.ones(4), learner)
    gain = 0.25 * (reward[0] - reward[1])  # d/dz of p r0 + (1 - p) r1
    assert float(learner.z) == pytest.approx(baselines_step(gain, reward, delta), rel=1e-6)


def test_trpo_as_the_paper_constrains_it() -> None:
    """slack 1 and the length by F alone: a full step of KL delta to second order, and no further than delta."""
    learner = Bandit([0, 1], [1.0, -1.0])
    forest = Forest.from_completions([[1]], [[[2]] * 2], [0.0] * 2)
    part = NaturalGradient(radius=1e-6, slack=1.0, damped_length=False)
    part.run(forest, learner.credit, torch.ones(2), learner)
    p = 1 / (1 + math.exp(-float(learner.z)))
    assert -0.5 * math.log(4 * p * (1 - p)) == pytest.approx(1e-6, rel=1e-3)
    assert gxpo.method("trpo").update == NaturalGradient()
    assert (part.shrink, part.backtracks, part.damping) == (0.5, 9, 0.1)
