"""Ridge regression against numpy: a worked line, its minimum, units, and the buffer of rows."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from gxpo.algorithms.signals.ridge_probe import RidgeProbe, ridge
from gxpo.base.errors import ConfigError

F64 = torch.float64


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=F64)


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


# ---------------------------------------------------------------- the regression
def test_worked_line() -> None:
    """x = [0, 2], y = [1, 3]: spread 1, (2 + 2 strength) w = 2. Strength 0: w 1, b 1; strength 1: w .5, b 1.5."""
    for strength, slope, intercept in ((0.0, 1.0, 1.0), (1.0, 0.5, 1.5)):
        w, b = ridge(column(0, 2)[:, None], column(1, 3), strength)
        assert w.tolist() == pytest.approx([slope]) and float(b) == pytest.approx(intercept)


@pytest.mark.parametrize(("n", "d"), [(40, 6), (5, 30)])  # both systems of equations
def test_ridge_is_the_minimum_of_what_it_says(n: int, d: int) -> None:
    """Augmented least squares in numpy: rows sqrt(strength) * spread_k under the centred data."""
    x, y = noise(n, d) * torch.arange(1, d + 1), noise(n, seed=1)
    w, b = ridge(x, y, 0.3)
    a = np.asarray(x) - np.asarray(x).mean(0)
    below = np.diag(np.sqrt(0.3 * n) * np.asarray(x).std(0))
    expected = np.linalg.lstsq(np.vstack([a, below]), np.concatenate([np.asarray(y) - float(y.mean()), np.zeros(d)]))[0]
    assert w.tolist() == pytest.approx(expected.tolist(), abs=1e-9)
    assert float((x @ w + b - y).mean()) == pytest.approx(0.0, abs=1e-9)


def test_without_a_penalty_it_is_least_squares() -> None:
    x, y = noise(30, 4), noise(30, seed=1)
    w, b = ridge(x, y, 0.0)
    ones = np.hstack([np.asarray(x), np.ones((30, 1))])
    assert [*w.tolist(), float(b)] == pytest.approx(np.linalg.lstsq(ones, np.asarray(y))[0].tolist(), abs=1e-9)


def test_ridge_ignores_units_and_constant_features() -> None:
    x, y = noise(20, 3), noise(20, seed=1)
    plain, b = ridge(x, y, 0.1)
    scaled, c = ridge(torch.cat([x * column(1e4, 1, 1e-4) + 7, torch.full((20, 1), 0.3)], 1), y, 0.1)
    assert (scaled[:3] * column(1e4, 1, 1e-4)).tolist() == pytest.approx(plain.tolist(), rel=1e-6)
    assert float(scaled[3]) == 0.0 and math.isfinite(float(b) + float(c))


def test_ridge_probe_keeps_the_newest_rows_and_fits_when_full():
    class Probe(RidgeProbe):
        def compute(self, forest, signals, tools):
            return {}

    probe = Probe(buffer=3, min_rows=3, ridge=0.0)
    probe.keep(torch.tensor([[0.0], [1.0]], dtype=torch.float64), torch.tensor([9.0, 3.0], dtype=torch.float64))
    assert probe.rows == 2 and probe.fit() is None
    probe.keep(torch.tensor([[2.0], [3.0]], dtype=torch.float64), torch.tensor([5.0, 7.0], dtype=torch.float64))
    assert probe.rows == 3 and probe.memory["target"].tolist() == [3.0, 5.0, 7.0]  # the first row is gone
    weight, intercept = probe.fit()  # type: ignore[misc]  # y = 2 x + 1 through the three that are left
    assert weight.tolist() == pytest.approx([2.0]) and float(intercept) == pytest.approx(1.0)


def test_more_rows_to_fit_on_than_the_buffer_holds_are_refused():
    class Probe(RidgeProbe):
        def compute(self, forest, signals, tools):
            return {}

    with pytest.raises(ConfigError, match=r"min_rows \(5\) is more than buffer \(4\)"):
        Probe(buffer=4, min_rows=5)
