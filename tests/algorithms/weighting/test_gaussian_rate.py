"""FG-ExPO's weights: the card's numbers, a loop, mean 1 over groups."""

from __future__ import annotations

import math
import statistics

import pytest
import torch
from hypothesis import given, settings
from tests.algorithms.weighting.verdict_rows import forest_of, group_of, peers_of, rows_of_verdicts

import gxpo
from gxpo.algorithms.weighting.group_curves import gaussian_rate
from gxpo.base.errors import ConfigError


def gaussian_rate_weight(**options):
    keys = {"weight.mine": "group_weight", "weight.mine.curve": "gaussian_rate"}
    return gxpo.method("grpo", keys | {f"weight.mine.{k}": v for k, v in options.items()}).weights["mine"]


def weights(rows, part):
    forest = forest_of(rows)
    found = part(forest, torch.zeros(forest.n_entries), {}, 0)
    return [float(found[forest.path_of(r)[0]]) for r in range(len(rows))]


def test_card() -> None:
    rate = torch.tensor([0.0, 0.25, 0.5, 1.0], dtype=torch.float64)
    raw = [0.135335, 0.606531, 1.0, 0.135335]
    found = gaussian_rate(rate, torch.tensor([2, 4, 2, 0]))  # nobody is compared in the last
    assert found.tolist() == pytest.approx([x / (sum(raw[:3]) / 3) for x in raw], abs=1e-5)
    rows = group_of(0, 0) + group_of(1, 0, name="b")
    mean = (0.135335 + 1) / 2  # of the two groups
    assert weights(rows, gaussian_rate_weight()) == pytest.approx([0.135335 / mean] * 2 + [1 / mean] * 2, abs=1e-5)


@settings(max_examples=60, deadline=None)
@given(rows_of_verdicts)
def test_equals_a_loop(rows):
    def raw(group):
        peers = peers_of(rows, group)
        return math.exp(-(((statistics.fmean(peers) if peers else 0.0) - 0.4) ** 2) / (2 * 0.3**2))

    own = [raw(g) for g in {r[0] for r in rows} if peers_of(rows, g)]
    mean = statistics.fmean(own) if own else None
    wanted = [raw(g) / mean if mean else 1.0 for g, *_ in rows]
    assert weights(rows, gaussian_rate_weight(center=0.4, sigma=0.3)) == pytest.approx(wanted)


def test_a_wide_gaussian_is_no_weight_and_one_group_has_one() -> None:
    rows = group_of(1, 1, 0) + group_of(0, 0, name="b")
    assert weights(rows, gaussian_rate_weight(sigma=1e6)) == pytest.approx([1.0] * 5)
    assert weights(group_of(1, 1, 1), gaussian_rate_weight()) == pytest.approx([1.0] * 3)


def test_bad_options() -> None:
    for bad in ({"sigma": 0.0}, {"center": 1.5}):
        with pytest.raises(ConfigError, match=r"weight\.mine"):
            gaussian_rate_weight(**bad)
