"""Set-level contrast (MPO): the card's numbers, a loop over groups."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.algorithms.objectives import labelled_groups as groups

from gxpo.algorithms.objectives.set_contrast import SetContrast, set_contrast


def column(*x: float) -> torch.Tensor:
    return torch.tensor(x, dtype=torch.float64)


def contrast_of(scores, outcomes, **options):
    n = len(scores)
    where, group = torch.ones(n, dtype=torch.bool), torch.zeros(n, dtype=torch.int64)
    each = set_contrast(column(*scores), column(*outcomes), group, where, 1.0, **options)
    assert len(set(each.tolist())) == 1
    return float(each[0])


def test_card():
    scores, outcomes = (0.5, 0.2, -0.1, -0.3), (0.9, 0.6, 0.3, 0.2)
    assert contrast_of(scores, outcomes, alpha=1.0) == pytest.approx(0.439941, abs=6e-7)
    assert contrast_of(scores, outcomes, alpha=0.0) == pytest.approx(0.453223, abs=6e-7)
    assert contrast_of((0.5, -0.3), (1.0, 0.0), alpha=0.0) == pytest.approx(0.371101, abs=6e-7)  # DPO
    assert contrast_of(scores, (0.3,) * 4) == 0.0
    assert contrast_of((0.5, 0.1, -0.3), (1.0, 0.5, 0.0), alpha=0.0) == pytest.approx(  # at the mean is not above it
        -math.log(math.exp(0.5) / (math.exp(0.5) + math.exp(0.1) + math.exp(-0.3)))
    )


@settings(max_examples=30)
@given(st.integers(0, 10**6))
def test_agrees_with_a_loop(seed):
    forest, term = groups.random_labelled(seed), SetContrast(alpha=0.7, power=2.0)
    x = groups.policies(forest, seed)
    value, _ = groups.graded(term, forest, x, torch.ones(forest.n_entries, dtype=torch.float64))
    gap, total, members = x["logprob"] - x["reference_logprob"], 0.0, groups.members(forest)
    for rows in members.values():
        compared_rows = [r for r in rows if r["compared"]]
        mean = sum(r["reward"] for r in compared_rows) / max(1, len(compared_rows))
        size = [
            math.exp(0.1 * sum(float(gap[p]) for p in r["entries"]) + 0.7 * abs(r["reward"] - mean) ** 2)
            for r in compared_rows
        ]
        top = sum(s for s, r in zip(size, compared_rows, strict=True) if r["reward"] > mean + 1e-9)
        if compared_rows and max(r["reward"] for r in compared_rows) > min(r["reward"] for r in compared_rows):
            total -= math.log(top / sum(size))
    assert value == pytest.approx(total / len(members), rel=1e-9, abs=1e-12)
