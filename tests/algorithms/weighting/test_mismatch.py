"""Weights between sampler and learner: the cards' numbers, what is unknown, products, masks against a loop."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gxpo
from gxpo.algorithms.weighting import Truncated, WeightProduct, truncated
from gxpo.algorithms.weighting.mismatch import MismatchMask, agreeing
from gxpo.base.errors import ConfigError
from gxpo.forest.forest import Forest

NAN, INF = float("nan"), float("inf")


def forest_of(n: int) -> Forest:
    turn = {"action": [1] * n, "logprob": [-1.0] * n}
    return Forest.from_records([{"schema": "gxpo.rollouts/1", "group": "a", "id": "t", "prompt": [1], "turns": [turn]}])


def test_card() -> None:
    behaviour = torch.tensor([-1.0, -0.5, -2.0, -0.1, -0.9], dtype=torch.float64)
    expected = torch.tensor([0.25, 0.8, 1.0, 1.5, 4.0], dtype=torch.float64)
    proximal = behaviour + expected.log()
    assert truncated(proximal, behaviour).tolist() == pytest.approx([0.25, 0.8, 1.0, 1.5, 2.0])
    assert truncated(proximal, behaviour, cap=8.0).tolist() == pytest.approx(expected.tolist())


def test_equal_and_unknown_policies_weigh_exactly_one() -> None:
    x = torch.tensor([-0.3, -7.0, -1e-9])
    assert torch.equal(truncated(x, x), torch.ones(3, dtype=torch.float64))
    unknown = torch.tensor([NAN, -7.0, NAN])
    assert torch.equal(truncated(x, unknown), torch.ones(3, dtype=torch.float64))
    assert torch.equal(truncated(unknown, x), torch.ones(3, dtype=torch.float64))


LOGPROB = st.one_of(st.floats(-1e5, 0), st.sampled_from([-INF, NAN, 0.0]))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(LOGPROB, LOGPROB), min_size=1, max_size=8), st.sampled_from([0.5, 1.0, 2.0, 1e6]))
def test_weights_are_finite_bounded_and_the_capped_ratio(pairs: list[tuple[float, float]], cap: float) -> None:
    weights = truncated(torch.tensor([p for p, _ in pairs]), torch.tensor([b for _, b in pairs]), cap).tolist()
    for weight, (p, b) in zip(weights, pairs, strict=True):
        assert 0 <= weight <= cap or math.isnan(p) or math.isnan(b) or p == b == -INF
        if math.isfinite(p) and math.isfinite(b) and p - b < 20:
            p, b = (float(torch.tensor(v)) for v in (p, b))  # as float32 holds them
            assert weight == pytest.approx(min(math.e ** (p - b), cap), rel=1e-9)


def test_the_part_reads_its_signals_and_multiplies() -> None:
    forest = forest_of(3)
    signals = {
        "proximal_logprob": torch.tensor([-1.0, -1.0, -1.0], requires_grad=True),
        "behaviour_logprob": torch.tensor([-1.0, -3.0, -0.5]),
    }
    weight = Truncated()(forest, torch.ones(3), signals, 0)
    assert weight.tolist() == pytest.approx([1.0, 2.0, math.exp(-0.5)]) and not weight.requires_grad
    assert weight.dtype == torch.float64
    both = Truncated() * Truncated(cap=1.0) * Truncated(cap=4.0)
    assert isinstance(both, WeightProduct) and len(both.parts) == 3
    assert both(forest, torch.ones(3), signals, 0).tolist() == pytest.approx([1.0, 2.0 * 1.0 * 4.0, math.exp(-1.5)])

    def positive(forest: Forest, credit: torch.Tensor, signals, step: int) -> torch.Tensor:
        return (credit > 0).double()

    credit = torch.tensor([1.0, -1.0, 0.0])
    for product in (Truncated() * positive, positive * Truncated()):
        assert product(forest, credit, signals, 0).tolist() == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("cap", [0.0, -1.0, INF, NAN])
def test_a_cap_is_finite_and_positive(cap: float) -> None:
    with pytest.raises(ConfigError, match=r"weight\.cap is"):
        Truncated(cap=cap)


# ---------------------------------------------------------------- masks
def column(*x: float) -> torch.Tensor:
    return torch.tensor(x, dtype=torch.float64)


def test_the_cards_of_masks() -> None:
    one, all_of = torch.zeros(3, dtype=torch.int64), torch.ones(3, dtype=torch.bool)
    at = column(1.1, 0.9, 1.3).log()  # geometric mean 1.087743
    assert agreeing(at, 0 * at, one, all_of, (0.75, 1.25), (0.9, 1.1)).tolist() == [1, 1, 0]
    assert agreeing(at, 0 * at, one, all_of, (0.75, 1.25), (0.9, 1.087)).tolist() == [0, 0, 0]
    # [.25 .8 1 1.5 4], rows of 2 and 3: geometric means .447214 and 1.817121
    w, row = column(0.25, 0.8, 1.0, 1.5, 4.0).log(), torch.tensor([0, 0, 1, 1, 1])
    every = torch.ones(5, dtype=torch.bool)
    assert agreeing(w, 0 * w, row, every).tolist() == [0, 1, 1, 1, 0]
    assert agreeing(w, 0 * w, row, every, (0.0, INF), (0.45, INF)).tolist() == [0, 0, 1, 1, 1]
    assert agreeing(w, 0 * w, row, every, (0.0, INF), (0.0, 1.8)).tolist() == [1, 1, 0, 0, 0]
    # IcePop: the weight where the mask is 1
    icepop = agreeing(w, 0 * w, row, every, (0.5, 5.0)) * truncated(w, 0 * w, 5.0)
    assert icepop.tolist() == pytest.approx([0.0, 0.8, 1.0, 1.5, 4.0])


MASKED = st.lists(
    st.tuples(st.one_of(st.floats(-2, 2), st.just(NAN)), st.integers(0, 2), st.booleans()), min_size=1, max_size=9
)


@settings(max_examples=100)
@given(MASKED, st.floats(0, 1), st.floats(1, 4), st.floats(0, 1), st.floats(1, 4))
def test_a_loop_gives_the_same_mask(entries, low, high, least, most) -> None:
    entries = sorted(entries, key=lambda e: e[1])
    at, row, where = column(*(e[0] for e in entries)), [e[1] for e in entries], [e[2] for e in entries]
    mask = agreeing(at, 0 * at, torch.tensor(row), torch.tensor(where), (low, high), (least, most)).tolist()
    for i, (log_ratio, r, _) in enumerate(entries):
        log_ratios = [x for x, other, trained in entries if other == r and trained and not math.isnan(x)]
        sequence_ratio = math.exp(sum(log_ratios) / len(log_ratios)) if log_ratios else 1.0
        ratio = 1.0 if math.isnan(log_ratio) else math.exp(log_ratio)
        edge = min(abs(sequence_ratio - least), abs(sequence_ratio - most), abs(ratio - low), abs(ratio - high)) < 1e-9
        assert edge or mask[i] == float(low <= ratio <= high and least <= sequence_ratio <= most)


def test_the_mask_keeps_tokens_of_equal_or_unknown_ratio() -> None:
    forest = forest_of(3)
    same = {"proximal_logprob": column(-1.0, -2.0, NAN), "behaviour_logprob": column(-1.0, NAN, -1.0)}
    narrow = MismatchMask(1.0, 1.0, 1.0, 1.0)
    assert narrow(forest, torch.ones(3), same, 0).tolist() == [1, 1, 1]
    other = {"proximal_logprob": column(-1.0, -1.0, -1.0), "behaviour_logprob": column(-1.0, -3.0, -1.0)}
    assert MismatchMask()(forest, torch.ones(3), other, 0).tolist() == [1, 0, 1]
    # e^(2/3) = 1.95 is the answer's mean
    assert MismatchMask(0.0, INF, 0.9, 1.9)(forest, torch.ones(3), other, 0).tolist() == [0, 0, 0]
    gone = {"proximal_logprob": column(-INF, -1.0, -1.0), "behaviour_logprob": column(-1.0, -1.0, -1.0)}
    assert MismatchMask()(forest, torch.ones(3), gone, 0).tolist() == [0, 1, 1]
    for wrong in ({"token_min": 1.5}, {"token_max": 0.5}, {"sequence_min": -0.1}, {"sequence_max": NAN}):
        with pytest.raises(ConfigError, match=r"weight\.mismatch_mask"):
            MismatchMask(**wrong)


def test_hispo_trains_where_they_agree_and_divides_by_all() -> None:
    m, forest = gxpo.method("hispo"), forest_of(4).replace(outcome=torch.ones(1, dtype=torch.float64))
    behaviour = column(-1.0, -1.0, -1.0, -1.0)
    proximal = behaviour + column(0.1, -0.1, 0.9, -0.9)  # the answer agrees, two tokens don't (2.46, .41)
    logprob = (behaviour + column(0.1, 0.3, 0.0, 0.0)).requires_grad_()
    policy = gxpo.PolicyTokens(logprob, behaviour, proximal_logprob=proximal)
    m.loss(forest, policy, advantages=torch.ones(4, dtype=torch.float64)).value.backward()
    assert logprob.grad is not None  # e^.1 / 4; e^.3 = 1.35 is held; masked; masked
    assert logprob.grad.tolist() == pytest.approx([-math.exp(0.1) / 4, 0.0, 0.0, 0.0])
    far = gxpo.PolicyTokens(logprob, behaviour, proximal_logprob=behaviour + 0.2)
    assert float(m.loss(forest, far, advantages=torch.ones(4, dtype=torch.float64)).value.detach()) == 0.0
