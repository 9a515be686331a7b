"""Other trainers' losses: TRL's loss types, verl's policy losses and bounds of CISPO, each from its formula in a loop.

The five tokens are those of tests/objectives: two answers of two and three tokens, A = 1 and -1.
scripts/checks/check_trl.py and scripts/checks/check_verl.py hold the same compositions against the installed packages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch

import gxpo
from gxpo.forest.forest import Forest

OLD = [-0.5, -1.0, -2.0, -0.3, -0.7]
CHANGE = [0.3, -0.1, -0.4, 0.2, 0.5]
REFERENCE = [-0.4, -1.3, -1.8, -0.5, -0.2]
ENTROPY = [0.5, 1.5, 0.25, 2.0, 1.0]
ROW, CREDIT = [0, 0, 1, 1, 1], [1.0, 1.0, -1.0, -1.0, -1.0]
NEW = [o + d for o, d in zip(OLD, CHANGE, strict=True)]
Each = Callable[[list[float], list[float]], list[float]]  # log-probs that carry the gradient, and those that don't


def of_method(
    spec: str, overrides: Mapping[str, Any] | None = None, credit: Sequence[float] = CREDIT
) -> tuple[float, list[float]]:
    """Loss of the composed method and its derivative by each log-prob; a KL in the loss is left out."""
    forest = Forest.from_completions([[1]], [[[2, 3], [4, 5, 6]]], [1.0, 0.0], logprobs=[[OLD[:2], OLD[2:]]])
    new = torch.tensor(NEW, dtype=torch.float64, requires_grad=True)
    old = torch.tensor(OLD, dtype=torch.float64)
    entropy = torch.tensor(ENTROPY, dtype=torch.float64)
    policy = gxpo.PolicyTokens(
        new, old, proximal_logprob=old, reference_logprob=torch.tensor(REFERENCE, dtype=torch.float64), entropy=entropy
    )
    method = gxpo.method(spec, {"objective.kl.coef": 0.0, **(overrides or {})}).fill(horizon=4.0)
    value = method.loss(forest, policy, advantages=torch.tensor(credit, dtype=torch.float64)).value
    value.backward()
    assert new.grad is not None
    return float(value.detach()), new.grad.tolist()


def by_loop(each: Each, mean: str) -> tuple[float, list[float]]:
    """The same of a formula, its slope by finite differences of what carries the gradient."""

    def total(live: list[float]) -> float:
        losses = each(live, NEW)
        rows = [[x for x, r in zip(losses, ROW, strict=True) if r == row] for row in (0, 1)]
        if mean == "tokens":
            return sum(losses) / len(losses)
        if mean == "rows":
            return sum(sum(row) / len(row) for row in rows) / len(rows)
        return sum(sum(row) for row in rows) / len(rows) / float(mean)

    slopes, h = [], 1e-6
    for i in range(len(NEW)):
        up, down = ([x + (s if j == i else 0.0) for j, x in enumerate(NEW)] for s in (h, -h))
        slopes.append((total(up) - total(down)) / (2 * h))
    return total(NEW), slopes


def agree(found: tuple[float, list[float]], expected: tuple[float, list[float]]) -> None:
    assert found[0] == pytest.approx(expected[0], abs=1e-9)
    assert found[1] == pytest.approx(expected[1], abs=1e-8)


# ---------------------------------------------------------------- formulas, one token at a time
def token_ratios(live: Sequence[float]) -> list[float]:
    return [math.exp(x - o) for x, o in zip(live, OLD, strict=True)]


def row_ratios(live: Sequence[float]) -> list[float]:
    """Of each token the geometric mean of its row."""
    sums = {row: sum(x - o for x, o, r in zip(live, OLD, ROW, strict=True) if r == row) for row in (0, 1)}
    return [math.exp(sums[r] / ROW.count(r)) for r in ROW]


def clipped(low: float, high: float, ratios: Callable[..., list[float]] = token_ratios, delta: float | None = None):
    """TRL's: the first argument of the minimum may be bounded by `delta` too."""

    def each(live: list[float], held: list[float]) -> list[float]:
        out = []
        for rho, a in zip(ratios(live), CREDIT, strict=True):
            first = rho if delta is None else min(rho, delta)
            out.append(-min(first * a, min(max(rho, 1 - low), 1 + high) * a))
        return out

    return each


def dual(low: float, high: float, c: float) -> Each:
    """verl's: max(-A rho, -A clip(rho)), and for A < 0 no more than -A c."""

    def each(live: list[float], held: list[float]) -> list[float]:
        out = []
        for rho, a in zip(token_ratios(live), CREDIT, strict=True):
            worst = max(-a * rho, -a * min(max(rho, 1 - low), 1 + high))
            out.append(min(worst, -a * c) if a < 0 else worst)
        return out

    return each


def areal(eps: float, c: float) -> Each:
    """AReaL's: min(loss, c |A|) whatever the sign."""

    def each(live: list[float], held: list[float]) -> list[float]:
        return [min(x, c * abs(a)) for x, a in zip(clipped(eps, eps)(live, held), CREDIT, strict=True)]

    return each


def bounded_weight(low: float, high: float) -> Each:
    """CISPO: the ratio's bounds are absolute here, and the weight is a constant."""

    def each(live: list[float], held: list[float]) -> list[float]:
        weights = [min(max(rho, low), high) for rho in token_ratios(held)]
        return [-w * a * x for w, a, x in zip(weights, CREDIT, live, strict=True)]

    return each


def gmpo(low: float, high: float) -> Each:
    def each(live: list[float], held: list[float]) -> list[float]:
        logs = []
        for x, o, a in zip(live, OLD, CREDIT, strict=True):
            d = x - o
            logs.append(min(d, min(max(d, -low), high)) if a > 0 else max(d, min(max(d, -low), high)))
        sums = {row: sum(d for d, r in zip(logs, ROW, strict=True) if r == row) for row in (0, 1)}
        return [-a * math.exp(sums[r] / ROW.count(r)) for a, r in zip(CREDIT, ROW, strict=True)]

    return each


def sapo(live: list[float], held: list[float]) -> list[float]:
    """(4 / tau) sigmoid(tau (rho - 1)), tau 1 for A > 0 and 1.05 else."""
    out = []
    for rho, a in zip(token_ratios(live), CREDIT, strict=True):
        tau = 1.0 if a > 0 else 1.05
        out.append(-a * 4 / tau / (1 + math.exp(-tau * (rho - 1))))
    return out


def vespo(live: list[float], held: list[float]) -> list[float]:
    """W^k e^(lambda (1 - W)) of the row's product of ratios, a constant; k, lambda 2, 3 for A >= 0 and 3, 2 else."""
    out = []
    for x, a, row in zip(live, CREDIT, ROW, strict=True):
        w = math.exp(sum(n - o for n, o, r in zip(held, OLD, ROW, strict=True) if r == row))
        k, decay = (2.0, 3.0) if a >= 0 else (3.0, 2.0)
        out.append(-(w**k) * math.exp(decay * (1 - w)) * a * x)
    return out


def dppo(divergence: Callable[[float, float], float], bound: float, most: float) -> Each:
    """Tokens whose probability has moved too far the way they are pushed are left out; the weight is a constant."""

    def each(live: list[float], held: list[float]) -> list[float]:
        out = []
        for x, h, o, a in zip(live, held, OLD, CREDIT, strict=True):
            p, q = math.exp(h), math.exp(o)
            outward = p > q if a > 0 else p < q
            is_kept = divergence(p, q) <= bound or not outward
            out.append(-min(p / q, most) * a * x if is_kept else 0.0)
        return out

    return each


def reinforce(live: list[float], held: list[float]) -> list[float]:
    return [-a * x for a, x in zip(CREDIT, live, strict=True)]


def tv(p: float, q: float) -> float:
    return abs(p - q)


def binary_kl(p: float, q: float) -> float:
    return q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p))


# TRL's loss types, at clips of 0.2 unless the type says otherwise: (method, overrides, formula, its mean)
TRL: dict[str, tuple[str, dict[str, Any], Each, str]] = {
    "grpo": ("grpo", {}, clipped(0.2, 0.2), "rows"),
    "bnpo, dapo": ("grpo@trl", {}, clipped(0.2, 0.2), "tokens"),
    "dapo, epsilon_high 0.28": ("dapo@trl", {}, clipped(0.2, 0.28), "tokens"),
    "dr_grpo": ("dr_grpo@trl", {}, clipped(0.2, 0.2), "4"),
    "delta": ("grpo@trl", {"objective.surrogate": "dual_clip", "objective.ratio_max": 1.5},
              clipped(0.2, 0.2, delta=1.5), "tokens"),
    "cispo": ("cispo@trl", {}, bounded_weight(0.0, 0.2), "tokens"),
    "cispo, epsilon_high 5": ("cispo@trl", {"objective.ratio_max": 5.0}, bounded_weight(0.0, 5.0), "tokens"),
    "grpo, sequence": ("gspo@trl", {}, clipped(3e-4, 4e-4, row_ratios), "rows"),
    "luspo": ("luspo@trl", {}, clipped(2e-3, 2.5e-3, row_ratios), "1"),
    "sapo": ("sapo_gate@trl", {}, sapo, "rows"),
    "vespo": ("vespo@trl", {}, vespo, "tokens"),
    "experimental gmpo": ("gmpo@trl", {"objective.log_clip_low": 0.35}, gmpo(0.35, 0.4), "rows"),  # no token on an edge
}  # fmt: skip


@pytest.mark.parametrize("name", TRL)
def test_trls_loss_types(name: str) -> None:
    spec, overrides, each, mean = TRL[name]
    agree(of_method(spec, overrides), by_loop(each, mean))


# verl's policy losses at its defaults, those of DAPO's and GSPO's recipes
VERL: dict[str, tuple[str, dict[str, Any], Each, str]] = {
    "vanilla": ("grpo@verl", {}, dual(0.2, 0.2, 3.0), "tokens"),
    "vanilla, c 1.3": ("grpo@verl", {"objective.ratio_max": 1.3}, dual(0.2, 0.2, 1.3), "tokens"),
    "vanilla, DAPO": ("dapo@verl", {}, dual(0.2, 0.28, 10.0), "tokens"),
    "vanilla, Dr. GRPO": ("dr_grpo@verl", {}, dual(0.2, 0.2, 3.0), "4"),
    "gspo": ("gspo@verl", {}, clipped(3e-4, 4e-4, row_ratios), "rows"),
    "geo_mean": ("gmpo@verl", {}, gmpo(0.2, 0.2), "rows"),
    "cispo": ("cispo@verl", {}, bounded_weight(0.8, 1.2), "tokens"),
    "sapo": ("sapo_gate@verl", {}, sapo, "rows"),
    "dppo_tv": ("dppo_divergence@verl", {}, dppo(tv, 0.2, 3.0), "tokens"),
    "dppo_kl": ("dppo_divergence@verl", {"objective.divergence": "kl"}, dppo(binary_kl, 0.2, 3.0), "tokens"),
    "gpg": ("gpg", {"objective.aggregate": "token_mean"}, reinforce, "tokens"),
}  # fmt: skip


@pytest.mark.parametrize("name", VERL)
def test_verls_policy_losses(name: str) -> None:
    spec, overrides, each, mean = VERL[name]
    agree(of_method(spec, overrides), by_loop(each, mean))


def unclipped(live: list[float], held: list[float]) -> list[float]:
    return [-rho * a for rho, a in zip(token_ratios(live), CREDIT, strict=True)]


def with_entropy(each: Each, coef: float) -> Each:
    """Less the bonus on what the learner says the entropies are, which have no gradient here."""
    return lambda live, held: [x - coef * h for x, h in zip(each(live, held), ENTROPY, strict=True)]


# the other systems at their defaults, as read: src/gxpo/methods/compat.py says where
OTHERS: dict[str, tuple[Each, str]] = {
    "grpo@openrlhf": (clipped(0.2, 0.2), "tokens"),
    "dr_grpo@openrlhf": (clipped(0.2, 0.2), "tokens"),
    "rloo@openrlhf": (clipped(0.2, 0.2), "tokens"),
    "reinforce_pp@openrlhf": (clipped(0.2, 0.2), "tokens"),
    "reinforce_pp_baseline@openrlhf": (clipped(0.2, 0.2), "tokens"),
    "grpo@areal": (clipped(0.2, 0.2), "tokens"),
    "grpo@rllm": (dual(0.2, 0.2, 3.0), "tokens"),
    "grpo@nemo-rl": (clipped(0.2, 0.2), "tokens"),
    "rloo@nemo-rl": (clipped(0.2, 0.2), "tokens"),
    "grpo@tinker": (unclipped, "1"),
    "cispo@tinker": (bounded_weight(0.0, 4.0), "1"),
    "grpo@slime": (clipped(0.2, 0.2), "rows"),
    "grpo@skyrl": (clipped(0.2, 0.2), "tokens"),
    "rloo@skyrl": (clipped(0.2, 0.2), "tokens"),
    "grpo@verl-agent": (with_entropy(dual(0.2, 0.2, 3.0), 0.001), "tokens"),
    "gigpo@verl-agent": (with_entropy(dual(0.2, 0.2, 3.0), 0.001), "tokens"),
    "grpo@roll": (clipped(0.2, 0.2), "rows"),
    "grpo@trinity": (dual(0.2, 0.2, 3.0), "tokens"),
    "gigpo@trinity": (dual(0.2, 0.2, 3.0), "tokens"),
    "asymre@trinity": (reinforce, "tokens"),
}


@pytest.mark.parametrize("spec", OTHERS)
def test_the_other_systems_losses(spec: str) -> None:
    each, mean = OTHERS[spec]
    agree(of_method(spec), by_loop(each, mean))


def k3(live: list[float], held: list[float]) -> list[float]:
    return [math.exp(r - x) - 1 - (r - x) for x, r in zip(live, REFERENCE, strict=True)]


def k2(live: list[float], held: list[float]) -> list[float]:
    return [(x - r) ** 2 / 2 for x, r in zip(live, REFERENCE, strict=True)]


@pytest.mark.parametrize(
    ("spec", "coef", "each", "mean"),
    [
        ("grpo@skyrl", 0.001, k3, "rows"),
        ("rloo@skyrl", 0.001, k3, "rows"),
        ("cispo@skyrl", 0.001, k3, "rows"),
        ("grpo@trinity", 0.001, k2, "tokens"),
        ("gigpo@trinity", 0.001, k2, "tokens"),
        ("cispo@trinity", 0.001, k2, "tokens"),
    ],
)
def test_a_kl_that_is_on_by_default(spec: str, coef: float, each: Each, mean: str) -> None:
    with_kl, without = of_method(spec, {"objective.kl.coef": coef}), of_method(spec)
    assert gxpo.method(spec).keys["objective.kl.coef"].value == coef
    value, slopes = by_loop(each, mean)
    assert with_kl[0] - without[0] == pytest.approx(coef * value, abs=1e-12)
    change = [a - b for a, b in zip(with_kl[1], without[1], strict=True)]
    assert change == pytest.approx([coef * x for x in slopes], abs=1e-10)


@pytest.mark.parametrize("name", ["grpo", "cispo", "rloo", "reinforce_pp", "reinforce_pp_baseline"])
def test_the_kl_of_nemo_rl_has_the_gradient_of_the_sampling_too(name: str) -> None:
    """loss_functions.py: exp(l - stop(l)) k3, whose slope is that of k3 and k3 itself; on policy, where both weights
    are 1."""
    method = gxpo.method(f"{name}@nemo-rl")
    forest = Forest.from_completions([[1]], [[[2, 3], [4, 5, 6]]], [1.0, 0.0], logprobs=[[OLD[:2], OLD[2:]]])
    live, old = torch.tensor(OLD, dtype=torch.float64, requires_grad=True), torch.tensor(OLD, dtype=torch.float64)
    policy = gxpo.PolicyTokens(
        live, old, proximal_logprob=old, reference_logprob=torch.tensor(REFERENCE, dtype=torch.float64)
    )
    method.loss(forest, policy, advantages=torch.zeros(5, dtype=torch.float64)).value.backward()
    expected = []
    for x, r in zip(OLD, REFERENCE, strict=True):
        estimate, slope = math.exp(r - x) - 1 - (r - x), 1 - math.exp(r - x)
        expected.append(0.01 * (estimate + slope) / 5)
    assert live.grad is not None and live.grad.tolist() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", ["rloo", "reinforce_pp", "reinforce_pp_baseline"])
@pytest.mark.parametrize("credit", [(1.0, -1.0), (-0.5, 2.0), (0.7, 0.3)])
def test_trls_rloo_clips_the_product_of_a_sequences_ratios(name: str, credit: tuple[float, float]) -> None:
    """rloo_trainer.py (1.16.0), lines 1822-1833: mean over rows of -min(s A, clip(s, .8, 1.2) A), s = exp(sum of the
    row's log-ratios). The gradient; the value here counts a row once for each of its tokens."""

    def total(live: Sequence[float]) -> float:
        out = 0.0
        for row, a in enumerate(credit):
            s = math.exp(sum(x - o for x, o, r in zip(live, OLD, ROW, strict=True) if r == row))
            out -= min(s * a, min(max(s, 0.8), 1.2) * a) / 2
        return out

    slopes, h = [], 1e-6
    for i in range(5):
        up, down = ([x + (s if j == i else 0.0) for j, x in enumerate(NEW)] for s in (h, -h))
        slopes.append((total(up) - total(down)) / (2 * h))
    actual = of_method(f"{name}@trl", credit=[credit[r] for r in ROW])[1]
    assert actual == pytest.approx(slopes, abs=1e-8)
    # the first answer's product is e^.2 = 1.221, the second's e^.3: above 1.2 they are cut where A > 0
    assert [x == 0.0 for x in actual] == [credit[r] > 0 for r in ROW]


def test_two_names_of_a_bound_on_worsening_tokens() -> None:
    """verl's c, TRL's delta and AReaL's min(l, c |A|) are one thing."""
    losses = [by_loop(each, "tokens") for each in (dual(0.2, 0.2, 1.5), clipped(0.2, 0.2, delta=1.5), areal(0.2, 1.5))]
    agree(losses[0], losses[1])
    agree(losses[0], losses[2])
    keys = {"objective.surrogate": "dual_clip", "objective.ratio_max": 1.5, "objective.aggregate": "token_mean"}
    actual = of_method("grpo", keys)
    agree(actual, losses[0])
    assert actual[0] == pytest.approx(0.283313, abs=6e-7)


@pytest.mark.parametrize(
    ("spec", "low", "high", "third"),
    [
        ("cispo", 0.0, 1.28, 0.134064),  # the paper trains without a lower bound: rho = 0.670320 / 5
        ("cispo@trinity", 0.0, 1.28, 0.134064),
        ("cispo@tinker", 0.0, 4.0, 0.134064),
        ("cispo@skyrl", 0.0, 5.0, 0.134064),
        ("cispo@trl", 0.0, 0.2, 0.04),
        ("cispo@verl", 0.8, 1.2, 0.16),
        ("cispo@nemo-rl", 0.8, 1.2, 0.16),
    ],
)
def test_bounds_of_cispo_by_system(spec: str, low: float, high: float, third: float) -> None:
    actual = of_method(spec, {"objective.aggregate": "token_mean"})
    agree(actual, by_loop(bounded_weight(low, high), "tokens"))
    assert actual[1][2] == pytest.approx(third, abs=6e-7)


def test_cispo_of_slime_counts_sequences() -> None:
    agree(of_method("cispo@slime"), by_loop(bounded_weight(0.8, 1.2), "rows"))


def test_on_policy_cispo_pushes_fully_everywhere_but_in_trl() -> None:
    # T5: rho = 1 must have a coefficient of 1
    forest = Forest.from_completions([[1]], [[[2], [3]]], [1.0, 0.0])
    old = torch.tensor([-1.0, -1.0], dtype=torch.float64)
    for spec, push in (
        ("cispo", 1.0),
        ("cispo@skyrl", 1.0),
        ("cispo@tinker", 1.0),
        ("cispo@verl", 1.0),
        ("cispo@trl", 0.2),
    ):
        new = old.clone().requires_grad_()
        credit = torch.tensor([1.0, -1.0], dtype=torch.float64)
        policy = gxpo.PolicyTokens(new, old, proximal_logprob=old, reference_logprob=old)
        gxpo.method(spec).loss(forest, policy, advantages=credit).value.backward()
        assert new.grad is not None and new.grad.tolist() == pytest.approx([-push / 2, push / 2])


def test_gspo_token_is_gspo_where_the_credit_is_constant() -> None:
    """TRL takes one ratio for a row, verl a ratio per token that has its value: the same loss and gradient."""
    live = torch.tensor(NEW, dtype=torch.float64, requires_grad=True)
    old, row = torch.tensor(OLD, dtype=torch.float64), torch.tensor(ROW)
    mean = torch.stack([(live - old)[row == r].mean() for r in (0, 1)])
    per_row, credit = mean.exp(), torch.tensor([1.0, -1.0], dtype=torch.float64)
    loss = -torch.min(per_row * credit, per_row.clamp(1 - 3e-4, 1 + 4e-4) * credit).mean()
    loss.backward()
    assert live.grad is not None
    agree(of_method("gspo"), (float(loss.detach()), live.grad.tolist()))
    assert of_method("gspo")[0] == pytest.approx(0.052385, abs=6e-7)


def test_a_sum_over_a_sequence_in_two_versions_of_verl() -> None:
    """`seq-mean-token-sum-norm` of 2026-01 divides by the horizon alone, that of 2026-08 by the sequences too."""
    losses = clipped(0.2, 0.2)(NEW, NEW)
    january, august = sum(losses) / 4, sum(losses) / 2 / 4
    assert (january, august) == (pytest.approx(0.391322, abs=6e-7), pytest.approx(0.195661, abs=6e-7))
    assert of_method("dr_grpo")[0] == pytest.approx(august, abs=1e-12)
