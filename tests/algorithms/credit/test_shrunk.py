"""The baseline between mean and prediction (V0.5)."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gxpo
from gxpo.algorithms.credit import advantage
from gxpo.algorithms.credit.baselines import prior_weight, shrinkage_baseline
from gxpo.base.errors import ConfigError

NAN = math.nan


def column(*values):
    return torch.tensor(values, dtype=torch.float64)


def baseline(rewards, prior, variance="prior"):
    outcome = column(*rewards)
    return (
        outcome
        - shrinkage_baseline(
            outcome, torch.zeros(len(rewards)).long(), torch.full_like(outcome, prior), variance=variance
        )
    )[0]


@pytest.mark.parametrize(
    ("rewards", "prior", "variance", "expected"),
    [
        ((1, 0, 0, 0), 0.4, "sample", 0.4),  # .25 / 4 = .0625 >= (.25 - .4)^2 = .0225: w = 1
        ((1, 0, 0, 0), 0.9, "sample", 0.346154),  # w = .0625 / .4225 = .147929
        ((1, 0, 0, 0), 0.9, "prior", 0.284615),  # w = .09 / 4 / .4225 = .053254
        ((0, 0, 0, 0), 0.4, "prior", 0.15),  # w = .24 / 4 / .16 = .375
        ((0, 0, 0, 0), 0.4, "sample", 0.0),  # no spread: the mean
    ],
)
def test_the_cards_numbers(rewards, prior, variance, expected):
    assert float(baseline(rewards, prior, variance)) == pytest.approx(expected, abs=1e-6)


def test_all_wrong_against_a_prediction_learns_and_is_negative():
    a = shrinkage_baseline(column(0, 0, 0, 0), torch.zeros(4).long(), torch.full((4,), 0.4))
    assert a.tolist() == pytest.approx([-0.15] * 4, abs=1e-7)  # the prediction is given in float32


row = st.tuples(
    st.sampled_from("abc"), st.sampled_from([0.0, 0.1, 1.0]), st.booleans(), st.sampled_from([NAN, 0.0, 0.35, 0.9, 1.0])
)


@given(st.lists(row, min_size=1, max_size=10), st.sampled_from(["prior", "sample"]))
def test_it_equals_a_loop(grow, rows, variance):
    forest = grow([(g, r, [1], {"compared": c}) for g, r, c, _ in rows])
    found = advantage(shrinkage_baseline, variance=variance)(
        forest, {"baseline": column(*(v for *_, v in rows))}, 0
    ).tolist()
    for value, (g, r, _, v) in zip(found, rows, strict=True):
        peers = [q for h, q, c, _ in rows if h == g and c]
        n = len(peers)
        if not n:
            assert value == pytest.approx(0.0 if math.isnan(v) else r - v)
            continue
        mean = sum(peers) / n
        if math.isnan(v):
            assert value == pytest.approx(r - mean, abs=1e-12)
            continue
        s = v * (1 - v) if variance == "prior" else sum((q - mean) ** 2 for q in peers) / (n - 1) if n > 1 else 0.0
        distance = (mean - v) ** 2
        w = 1.0 if distance <= s / n else s / n / distance
        if abs(distance - s / n) < 1e-12:
            continue  # either side of the corner, the same weight but for rounding
        assert value == pytest.approx(r - (w * v + (1 - w) * mean), abs=1e-12)


def test_without_predictions_it_is_the_mean_and_equal_groups_are_exactly_zero(grow):
    forest = grow([("a", 0.1, [2])] * 3 + [("b", 1.0, [1]), ("b", 0.1, [1]), ("c", 0.3, [1])])
    found = advantage(shrinkage_baseline)(forest, {"baseline": torch.full((6,), NAN)}, 0).tolist()
    assert found[:6] == [0.0] * 6 and found[6:8] == pytest.approx([0.45, -0.45]) and found[8] == 0.0


def test_the_weight_is_between_none_and_all_and_falls_with_distance_and_with_certainty():
    distance = torch.linspace(0, 1, 21).double()
    w = prior_weight(distance, torch.zeros(21), torch.full((21,), 0.04).double())
    assert float(w[0]) == 1.0 and bool((w.diff() <= 0).all()) and bool(((w > 0) & (w <= 1)).all())
    fewer = [float(baseline([0] * n, 0.5)) for n in (1, 2, 4, 8, 64)]
    assert fewer == sorted(fewer, reverse=True) and fewer[0] == 0.5 and fewer[-1] < 0.01
    assert float(prior_weight(column(0.5), column(0.5), column(0.0))) == 1.0  # nothing to choose between


def test_it_reads_any_baseline_signal_and_refuses_other_variances():
    assert gxpo.method("v05").needs == () and list(gxpo.method("v05").signals) == ["task_mean"]
    other = gxpo.method("grpo", {"credit": "shrinkage_baseline", "signal.value_probe": "value_probe"})
    assert other.credit == advantage(shrinkage_baseline)
    with pytest.raises(ConfigError, match=r"credit\.variance"):
        advantage(shrinkage_baseline, variance="plugin")  # type: ignore[arg-type]  # on purpose
