"""The whole policy term against a loop that states each paper's gradient; what must not change it."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.algorithms.objectives.by_position import Truncate
from tests.algorithms.objectives.conftest import figures_of
from torch import Tensor

from gxpo.algorithms.objectives import (
    KL,
    Clip,
    DualClip,
    Entropy,
    LogClip,
    PolicyGradient,
    Surrogate,
    TermPart,
    TermSum,
    coefficients,
    denominator,
)
from gxpo.base.errors import GxpoError
from gxpo.forest.forest import Forest
from gxpo.parts.definition import show
from gxpo.parts.protocols import PolicyTokens, Term

Grow = Callable[[Sequence[tuple[Any, ...]]], Forest]
SURROGATES = [Surrogate(), Clip(0.2, 0.28), DualClip(0.2, 0.2, 1.5), LogClip(0.3, 0.2), Truncate(1.28)]
MODES = ["token_mean", "sequence_mean", "sequence_sum"]
NAN = float("nan")


def surrogate_by_hand(
    surrogate: Surrogate, a: float, rho: float, log_held: float, log_own: float, lp: float
) -> tuple[float, float]:
    """Loss of an entry and its derivative in the token's own log-prob, as the papers state them."""
    if show(surrogate) == "truncate":
        w = min(rho, surrogate.ratio_max)
        return -w * a * lp, -w * a
    if isinstance(surrogate, LogClip):
        free = (a >= 0 and log_own <= surrogate.log_clip_high) or (a < 0 and log_own >= -surrogate.log_clip_low)
        return -a * rho, -a * rho if free else 0.0
    if isinstance(surrogate, Clip):
        low, high = 1 - surrogate.clip_low, 1 + surrogate.clip_high
        loss = max(-a * rho, -a * min(max(rho, low), high))
        free = (a >= 0 and rho <= high) or (a < 0 and rho >= low)
        if isinstance(surrogate, DualClip) and a < 0:
            free = free and rho <= surrogate.ratio_max
            loss = min(loss, -a * surrogate.ratio_max)
        return loss, -a * rho if free else 0.0
    return -a * rho, -a * rho


def by_hand(term: PolicyGradient, rows: list[list[dict[str, float]]]) -> tuple[float, list[float]]:
    """Trajectory by trajectory; rows[i] are its tokens: lp, below, credit, weight, trainable."""
    trainable_by_row = [[t for t in row if t["trainable"]] for row in rows]
    tokens, sequences = sum(len(k) for k in trainable_by_row), sum(bool(k) for k in trainable_by_row)
    # a row's log-ratios, clipped token by token where the surrogate does so before the mean (GMPO)
    loss, gradient = 0.0, []
    for row, trainable_tokens in zip(rows, trainable_by_row, strict=True):
        log_ratios = []
        for t in trainable_tokens:
            log_ratio = t["lp"] - t["below"]
            if isinstance(term.surrogate, LogClip):
                high, low = term.surrogate.log_clip_high, -term.surrogate.log_clip_low
                log_ratio = min(log_ratio, high) if t["credit"] >= 0 else max(log_ratio, low)
            log_ratios.append(log_ratio)
        mean = sum(log_ratios) / len(log_ratios) if log_ratios else 0.0
        for t in row:
            if not t["trainable"]:
                gradient.append(0.0)
                continue
            log_level = log_ratios[trainable_tokens.index(t)] if term.couples == "token" else mean
            value, slope = surrogate_by_hand(
                term.surrogate, t["credit"], math.exp(log_level), log_level, t["lp"] - t["below"], t["lp"]
            )
            # the denominator of the aggregation; 8 is the horizon
            share = {
                "token_mean": 1 / tokens,
                "sequence_mean": 1 / sequences / len(trainable_tokens),
                "sequence_sum": 1 / sequences / 8,
            }[term.aggregate]
            loss += share * t["weight"] * value
            gradient.append(share * t["weight"] * slope)
    return loss, gradient


TOKEN = st.fixed_dictionaries(
    {
        "lp": st.floats(-3, -0.01),
        "below": st.floats(-3, -0.01),
        "credit": st.sampled_from([-1.5, -0.3, 0.0, 0.4, 1.0]),
        "weight": st.sampled_from([0.0, 0.5, 1.0, 2.0]),
        "trainable": st.booleans(),
    }
)
ROWS = st.lists(st.lists(TOKEN, min_size=1, max_size=4), min_size=1, max_size=4)


def columns(rows: list[list[dict[str, float]]]) -> dict[str, Tensor]:
    return {k: torch.tensor([t[k] for row in rows for t in row], dtype=torch.float64) for k in rows[0][0]}


def evaluate(term: Term, forest: Forest, c: dict[str, Tensor], **changes: Tensor) -> tuple[float, Tensor]:
    lp = c["lp"].clone().requires_grad_()
    policy = PolicyTokens(lp, c["below"], **changes)  # type: ignore[arg-type]  # named tensors
    value = term(forest, policy, c["credit"], c["weight"], {}, 0)[0]
    value.backward()
    assert lp.grad is not None
    return float(value.detach()), lp.grad


def forest_of(grow: Grow, rows: list[list[dict[str, float]]]) -> Forest:
    return grow([("a", len(row), {"trainable": [bool(t["trainable"]) for t in row]}) for row in rows])


def random_rows(seed: int) -> list[list[dict[str, float]]]:
    """Rows with nothing special about them: unequal lengths, mixed masks, no ties."""
    pick = random.Random(seed)

    def token() -> dict[str, float]:
        credit, weight = pick.choice([pick.gauss(0, 1), 0.0, pick.gauss(0, 1)]), pick.choice([1.0, pick.random(), 0.0])
        lp = -2 * pick.random()
        below = lp + pick.gauss(0, 0.4)
        return {"lp": lp, "below": below, "credit": credit, "weight": weight, "trainable": pick.random() < 0.7}

    return [[token() for _ in range(pick.randint(1, 6))] for _ in range(4)]


@pytest.mark.parametrize("surrogate", SURROGATES, ids=lambda g: type(g).__name__)
@pytest.mark.parametrize("ratio", ["token", "sequence"])
def test_value_and_gradient_equal_a_loop_on_ordinary_rows(grow: Grow, surrogate: Surrogate, ratio: Any) -> None:
    for seed, mode in itertools.product(range(6), MODES):
        rows = random_rows(seed)
        term = PolicyGradient(ratio=ratio, surrogate=surrogate, aggregate=mode, horizon=8)  # type: ignore[arg-type]
        value, gradient = evaluate(term, forest_of(grow, rows), columns(rows))
        expected, slopes = by_hand(term, rows)
        assert value == pytest.approx(expected, abs=1e-12)
        assert gradient.tolist() == pytest.approx(slopes, abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(
    rows=ROWS,
    surrogate=st.sampled_from(SURROGATES),
    mode=st.sampled_from(MODES),
    ratio=st.sampled_from(["token", "sequence"]),
)
def test_value_and_gradient_equal_a_loop(grow: Grow, rows: list, surrogate: Surrogate, mode: Any, ratio: Any) -> None:
    forest = forest_of(grow, rows)
    term = PolicyGradient(ratio=ratio, surrogate=surrogate, aggregate=mode, horizon=8)
    c = columns(rows)
    value, gradient = evaluate(term, forest, c)
    # entries of a trajectory without any credit are not evaluated: their loss is 0 by hand too
    expected, slopes = by_hand(term, rows)
    assert value == pytest.approx(expected, abs=1e-11)
    assert gradient.tolist() == pytest.approx(slopes, abs=1e-11)
    active = term.active(forest, c["credit"], c["weight"])
    assert not gradient[~active].any()


@settings(max_examples=40, deadline=None)
@given(
    rows=ROWS,
    surrogate=st.sampled_from(SURROGATES),
    mode=st.sampled_from(MODES),
    ratio=st.sampled_from(["token", "sequence"]),
    parts=st.integers(1, 4),
    seed=st.integers(0, 99),
)
def test_any_partition_gives_the_gradient_of_the_whole(
    grow: Grow, rows: list, surrogate: Surrogate, mode: Any, ratio: Any, parts: int, seed: int
) -> None:
    # T3: the learner evaluates L with the entries of other micro-batches (and ranks) filled with detached values
    forest = forest_of(grow, rows)
    term = PolicyGradient(ratio=ratio, surrogate=surrogate, aggregate=mode, horizon=8)
    c = columns(rows)
    _, whole_gradient = evaluate(term, forest, c)
    axis = forest.path_trajectory if term.couples == "trajectory" else torch.arange(forest.n_entries)
    part = torch.randint(0, parts, (forest.n_entries,), generator=torch.Generator().manual_seed(seed))[axis]
    total = torch.zeros_like(whole_gradient)
    for k in range(parts):
        lp = c["lp"].clone().requires_grad_()
        x = torch.where(part == k, lp, lp.detach())
        term(forest, PolicyTokens(x, c["below"]), c["credit"], c["weight"], {}, 0)[0].backward()
        assert lp.grad is not None
        total += lp.grad
    assert total.tolist() == pytest.approx(whole_gradient.tolist(), abs=1e-13)


@settings(max_examples=30, deadline=None)
@given(rows=ROWS, surrogate=st.sampled_from(SURROGATES), ratio=st.sampled_from(["token", "sequence"]))
def test_entries_that_are_not_active_may_hold_anything(
    grow: Grow, rows: list, surrogate: Surrogate, ratio: Any
) -> None:
    forest = forest_of(grow, rows)
    term = PolicyGradient(ratio=ratio, surrogate=surrogate, aggregate="token_mean")
    c = columns(rows)
    active = term.active(forest, c["credit"], c["weight"])
    value, gradient = evaluate(term, forest, c)
    holes = c | {"lp": torch.where(active, c["lp"], NAN)}
    loss, slopes = evaluate(term, forest, holes)
    assert loss == value and torch.equal(slopes, gradient)
    metrics = figures_of(term, forest, PolicyTokens(holes["lp"], c["below"]), c["credit"], c["weight"])
    assert all(math.isfinite(v) for v in metrics.values())


@settings(max_examples=30, deadline=None)
@given(rows=ROWS, mode=st.sampled_from(MODES), ratio=st.sampled_from(["token", "sequence"]))
def test_order_of_trajectories_does_not_matter(grow: Grow, rows: list, mode: Any, ratio: Any) -> None:
    term = PolicyGradient(ratio=ratio, aggregate=mode, horizon=8)
    value, gradient = evaluate(term, forest_of(grow, rows), columns(rows))
    back, slopes = evaluate(term, forest_of(grow, rows[::-1]), columns(rows[::-1]))
    assert back == pytest.approx(value, abs=1e-13)
    split = list(gradient.split([len(r) for r in rows]))
    assert slopes.tolist() == pytest.approx(torch.cat(split[::-1]).tolist(), abs=1e-13)


# ---------------------------------------------------------------- aggregation
def test_masked_tokens_are_in_no_denominator() -> None:
    # T4: the numerator's mask is the denominator's
    trajectory, counted = torch.tensor([0, 0, 0, 1, 2, 2]), torch.tensor([True, False, True, False, True, True])
    assert coefficients(trajectory, counted, "token_mean").tolist() == [0.25, 0, 0.25, 0, 0.25, 0.25]
    assert coefficients(trajectory, counted, "sequence_mean").tolist() == [0.25, 0, 0.25, 0, 0.25, 0.25]
    assert coefficients(trajectory, counted, "sequence_sum", 10).tolist() == pytest.approx(
        [0.05, 0, 0.05, 0, 0.05, 0.05]
    )
    for mode in MODES:
        assert not coefficients(trajectory, torch.zeros(6, dtype=torch.bool), mode, 10).any()
        assert coefficients(trajectory[:0], counted[:0], mode, 10).shape == (0,)


def test_weights_and_credit_change_no_denominator(toy) -> None:
    # T21: a weight of 0 removes a token's loss and leaves the others' coefficients
    for mode in MODES:
        term = PolicyGradient(surrogate=Surrogate(), aggregate=mode, horizon=4)  # type: ignore[arg-type]  # one of the words
        _, plain_gradient = toy.loss(term)
        weight = torch.tensor([1.0, 0.0, 2.0, 1.0, 1.0], dtype=torch.float64)
        _, weighted = toy.loss(term, weight=weight)
        assert weighted == pytest.approx([g * w for g, w in zip(plain_gradient, weight.tolist(), strict=True)])


def test_the_weight_is_applied_after_the_surrogate(toy) -> None:
    # were the ratio weighted first, a weight of 2 would push every ratio out of the clip range
    _, plain = toy.loss(PolicyGradient())
    _, doubled = toy.loss(PolicyGradient(), weight=2 * toy.weight)
    assert doubled == pytest.approx([2 * g for g in plain])


def test_pad_columns_change_nothing() -> None:
    # T17: nothing is ever divided by a padded width
    results = []
    for pad in (0, 1, 7):
        width = 5 + pad
        completion_mask = torch.zeros(2, width, dtype=torch.long)
        completion_mask[0, 1:3], completion_mask[1, 1:5] = 1, 1
        real = completion_mask.clone()
        real[:, 0] = 1
        forest = Forest.from_padded(
            torch.arange(2 * width).reshape(2, width),
            completion_mask,
            torch.tensor([1.0, 0.0]),
            [0, 0],
            attention_mask=real,
        )
        x = torch.linspace(-2, -1, 6, dtype=torch.float64).requires_grad_()
        credit, weight = torch.tensor([1.0] * 2 + [-1.0] * 4), torch.ones(6)
        for mode in MODES:
            term = PolicyGradient(aggregate=mode, horizon=8)  # type: ignore[arg-type]  # one of the words
            value = term(forest, PolicyTokens(x, x.detach() - 0.1), credit, weight, {}, 0)[0]
            results.append((mode, float(value.detach()), torch.autograd.grad(value, x)[0].tolist()))
    assert all(r in results[:3] for r in results)


# ---------------------------------------------------------------- forks
def forked() -> Forest:
    """Three trajectories: t1 leaves t0 after 2 of 4 tokens, t2 leaves t0 after 3; one more stands alone."""

    def turn(tokens: list[int]) -> dict[str, Any]:
        return {"action": tokens, "logprob": [-1.0] * len(tokens)}

    base = {"schema": "gxpo.rollouts/1", "group": "a", "reward": 1.0}
    return Forest.from_records(
        [
            base | {"id": "t0", "prompt": [1], "turns": [turn([5, 6, 7, 8])]},
            base | {"id": "t1", "fork": {"of": "t0", "turn": 0, "token": 2}, "turns": [turn([9])]},
            base | {"id": "t2", "fork": {"of": "t0", "turn": 0, "token": 3}, "turns": [turn([4, 4])]},
            base | {"id": "t3", "prompt": [1], "turns": [turn([6, 6])]},
        ]
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("surrogate", SURROGATES, ids=lambda g: type(g).__name__)
@pytest.mark.parametrize("ratio", ["token", "sequence"])
def test_a_fork_and_the_same_trajectories_in_full_agree(mode: Any, surrogate: Surrogate, ratio: Any) -> None:
    forest = forked()
    flat = forest.flatten()
    assert flat.n_tokens > forest.n_tokens and torch.equal(flat.path_trajectory, forest.path_trajectory)
    generator = torch.Generator().manual_seed(3)
    stored = -torch.rand(forest.n_tokens, generator=generator, dtype=torch.float64)
    below = stored + 0.5 * torch.randn(forest.n_tokens, generator=generator, dtype=torch.float64)
    credit = torch.randn(forest.n_entries, generator=generator, dtype=torch.float64)
    term = PolicyGradient(ratio=ratio, surrogate=surrogate, aggregate=mode, horizon=5)
    grads, values = [], []
    for f in (forest, flat):
        x = stored.clone().requires_grad_()
        policy = PolicyTokens(x[forest.path_token], below[forest.path_token])
        value = term(f, policy, credit, torch.ones(f.n_entries), {}, 0)[0]
        value.backward()
        values.append(float(value.detach()))
        assert x.grad is not None
        grads.append(x.grad.tolist())
    assert values[0] == pytest.approx(values[1], abs=1e-14)
    assert grads[0] == pytest.approx(grads[1], abs=1e-14)


def test_a_shared_token_has_two_clipped_terms(grow: Grow) -> None:
    # advantages +1 and -1 do not cancel before the clip: rho 2 is clipped for +1 and not for -1
    base = {"schema": "gxpo.rollouts/1", "group": "a", "reward": 1.0}
    first = {"action": [5, 6], "logprob": [-1.0, -1.0]}
    rest = {"action": [7], "logprob": [-1.0]}
    forest = Forest.from_records(
        [
            base | {"id": "t0", "prompt": [1], "turns": [first]},
            base | {"id": "t1", "fork": {"of": "t0", "turn": 0, "token": 1}, "turns": [rest]},
        ]
    )
    x = torch.tensor([math.log(0.5)] * 4, dtype=torch.float64, requires_grad=True)
    policy = PolicyTokens(x, torch.full((4,), math.log(0.25), dtype=torch.float64))
    credit = torch.tensor([1.0, 0.0, -1.0, 0.0], dtype=torch.float64)
    value = PolicyGradient(aggregate="token_mean")(forest, policy, credit, torch.ones(4), {}, 0)[0]
    assert float(value.detach()) == pytest.approx((-1.2 + 2.0) / 4)


@pytest.mark.parametrize("mode", MODES)
def test_once_per_token_equals_a_loop_over_stored_tokens(mode: Any) -> None:
    forest = forked()
    generator = torch.Generator().manual_seed(5)
    stored = -torch.rand(forest.n_tokens, generator=generator, dtype=torch.float64)
    below = stored + 0.5 * torch.randn(forest.n_tokens, generator=generator, dtype=torch.float64)
    credit = torch.randn(forest.n_entries, generator=generator, dtype=torch.float64)
    weight = torch.rand(forest.n_entries, generator=generator, dtype=torch.float64)
    term = PolicyGradient(aggregate=mode, horizon=5, dedup_shared_tokens=True)
    policy = PolicyTokens(stored[forest.path_token], below[forest.path_token])
    loss = float(term(forest, policy, credit, weight, {}, 0)[0])

    entries: dict[int, list[int]] = {}  # stored token -> its entries
    for p, t in enumerate(forest.path_token.tolist()):
        entries.setdefault(t, []).append(p)
    terms = {}
    for t, its_entries in entries.items():
        rho = math.exp(float(stored[t] - below[t]))
        losses = [float(weight[p]) * surrogate_by_hand(Clip(), float(credit[p]), rho, 0, 0, 0)[0] for p in its_entries]
        terms[t] = sum(losses) / len(its_entries)
    trajectories = [forest.path_token[forest.path_of(r)].tolist() for r in range(forest.n_trajectories)]
    if mode == "token_mean":
        expected = sum(terms.values()) / len(terms)
    else:
        sums = [sum(terms[t] / len(entries[t]) for t in tokens) for tokens in trajectories]
        sizes = [sum(1 / len(entries[t]) for t in tokens) if mode == "sequence_mean" else 5 for tokens in trajectories]
        expected = sum(s / n for s, n in zip(sums, sizes, strict=True)) / len(trajectories)
    assert loss == pytest.approx(expected, abs=1e-13)


def test_once_per_token_without_forks_is_the_plain_term(toy) -> None:
    for mode in MODES:
        plain = PolicyGradient(aggregate=mode, horizon=4)  # type: ignore[arg-type]  # one of the words
        once = PolicyGradient(aggregate=mode, horizon=4, dedup_shared_tokens=True)  # type: ignore[arg-type]
        assert toy.loss(once)[1] == pytest.approx(toy.loss(plain)[1], abs=1e-15)


# ---------------------------------------------------------------- the ratio's denominator
def test_the_ratio_divides_by_the_proximal_policy(toy) -> None:
    proximal = toy.old - 0.7
    over = denominator(toy.policy(proximal_logprob=proximal), toy.forest.path_trainable)
    assert torch.equal(over, proximal)
    assert torch.equal(denominator(toy.policy(), toy.forest.path_trainable), toy.old)
    old_data = denominator(toy.policy(proximal_logprob=proximal), toy.forest.path_trainable, ratio_over="behaviour")
    assert torch.equal(old_data, toy.old)
    tracked = toy.old.clone().requires_grad_()
    assert not denominator(toy.policy(proximal_logprob=tracked), toy.forest.path_trainable).requires_grad


def test_unknown_behaviour_is_an_error_unless_said_otherwise(toy) -> None:
    unknown = toy.old.clone()
    unknown[1], unknown[4] = NAN, NAN
    with pytest.raises(GxpoError, match=r"2 of 5 trainable tokens have no behaviour log-prob.*on_unknown_behaviour"):
        toy.loss(PolicyGradient(), behaviour_logprob=unknown)
    with pytest.raises(GxpoError, match="no proximal log-prob"):
        toy.loss(PolicyGradient(), proximal_logprob=unknown)
    one = PolicyGradient(aggregate="token_mean", on_unknown_behaviour="one")
    _, gradient = toy.loss(one, behaviour_logprob=unknown)
    _, known_gradient = toy.loss(PolicyGradient(aggregate="token_mean"))
    assert gradient[1] == -1 / 5 and gradient[4] == 1 / 5  # REINFORCE: -A / count
    assert [gradient[i] for i in (0, 2, 3)] == [known_gradient[i] for i in (0, 2, 3)]
    # with a proximal policy the sampler's silence does not matter
    toy.loss(PolicyGradient(), behaviour_logprob=unknown, proximal_logprob=toy.old)


def test_untrainable_tokens_need_no_behaviour(grow: Grow) -> None:
    forest = grow([("a", 3, {"trainable": [True, False, True]})])
    x = torch.full((3,), -1.0, dtype=torch.float64, requires_grad=True)
    policy = PolicyTokens(x, torch.tensor([-1.0, NAN, -1.0], dtype=torch.float64))
    PolicyGradient(ratio="sequence")(forest, policy, torch.ones(3), torch.ones(3), {}, 0)[0].backward()
    assert x.grad is not None and x.grad.tolist() == [-0.5, 0.0, -0.5]


# ---------------------------------------------------------------- the contract
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_loss_has_the_dtype_of_the_log_probs(toy, dtype: torch.dtype) -> None:
    x = toy.logprob.detach().to(dtype).requires_grad_()
    policy = PolicyTokens(x, toy.old, toy.reference, x.detach().abs())
    term = PolicyGradient(aggregate="sequence_sum", horizon=3) + KL(0.1) + Entropy(0.1)
    value = term(toy.forest, policy, toy.credit, toy.weight, {}, 0)[0]
    assert value.dtype == dtype and value.shape == ()
    value.backward()
    assert x.grad is not None and x.grad.dtype == dtype


def test_zero_credit_gives_a_differentiable_loss_of_zero(toy) -> None:
    for term in (PolicyGradient(), PolicyGradient(ratio="sequence", surrogate=LogClip())):
        value = term(toy.forest, toy.policy(), torch.zeros(5), toy.weight, {}, 0)[0]
        assert float(value.detach()) == 0
        assert not torch.autograd.grad(value, toy.logprob)[0].any()
        assert not term.active(toy.forest, torch.zeros(5), toy.weight).any()


def test_a_sum_couples_as_widely_as_its_widest_term(toy) -> None:
    token, sequence = PolicyGradient(), PolicyGradient(ratio="sequence")
    assert (token.couples, sequence.couples) == ("token", "trajectory")
    both = token + sequence + KL(0.1)
    assert isinstance(both, TermSum) and both.couples == "trajectory" and len(both.terms) == 3
    assert both.needs == ("reference_logprob",) and (token + Entropy(0.1)).outputs == ("logprob", "entropy")
    changes = {"reference_logprob": toy.reference}
    expected = sum(toy.loss(t, **changes)[0] for t in (token, sequence, KL(0.1)))
    assert toy.loss(both, **changes)[0] == pytest.approx(expected)
    metrics = figures_of(both, toy.forest, toy.policy(**changes), toy.credit, toy.weight)
    assert {"clip_fraction", "clip_fraction_2", "kl"} <= set(metrics)
    credit = torch.zeros(5)
    assert torch.equal(both.active(toy.forest, credit, toy.weight), torch.ones(5, dtype=torch.bool))
    as_protocol: Term = both
    assert as_protocol.couples == "trajectory"


def test_the_order_of_couplings_is_that_of_the_axes() -> None:
    class Coupled(TermPart):
        def __init__(self, couples: str) -> None:
            self.couples = couples

        def __call__(self, *args: Any) -> torch.Tensor:
            raise AssertionError("only its coupling is asked for")

        active = __call__

    order = ["token", "trajectory", "group", "step"]
    for i, wide in enumerate(order):
        for narrow in order[: i + 1]:
            assert (Coupled(narrow) + Coupled(wide)).couples == wide == (Coupled(wide) + Coupled(narrow)).couples


def test_untrainable_tokens_are_not_in_a_sequence_ratio(grow: Grow) -> None:
    forest = grow([("a", 3, {"trainable": [True, False, True]})])
    x = torch.tensor([-1.0, -9.0, -1.0], dtype=torch.float64)
    below = torch.tensor([-1.1, -1.0, -1.3], dtype=torch.float64)
    term = PolicyGradient(ratio="sequence", surrogate=Surrogate())
    loss = term(forest, PolicyTokens(x, below), torch.ones(3), torch.ones(3), {}, 0)[0]
    assert float(loss) == pytest.approx(-math.exp(0.2))
    assert term.active(forest, torch.ones(3), torch.ones(3)).tolist() == [True, False, True]


def test_a_trajectory_of_weight_zero_only_counts(grow: Grow) -> None:
    forest = grow([("a", 2), ("a", 2, {"weight": 0.0})])
    weight = forest.to_path(forest.weight, "R")
    x = torch.tensor([-1.0, -1.0, NAN, NAN], dtype=torch.float64, requires_grad=True)
    policy = PolicyTokens(x, x.detach().nan_to_num(-1.0), torch.full((4,), -2.0, dtype=torch.float64), -x)
    for term, size in ((PolicyGradient(), -0.25), (KL(1.0, estimator="k2"), 0.25), (Entropy(1.0), 0.25)):
        gradient = torch.autograd.grad(term(forest, policy, torch.ones(4), weight, {}, 0)[0], x)[0]
        assert gradient.tolist() == pytest.approx([size, size, 0, 0])
