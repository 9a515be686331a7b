"""VPPO: the card's numbers, which tokens are kept, scales of the batch."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.algorithms.weighting.verdict_rows import part_of

from gxpo.algorithms.weighting.scores import dependency
from gxpo.algorithms.weighting.token_curves import top_scaled
from gxpo.base.errors import ConfigError, MissingSignal
from gxpo.forest.forest import Forest


def perception_weight(**options):
    return part_of("vppo", "perception", **options)


def scales(mean: torch.Tensor, where: torch.Tensor, least: float) -> torch.Tensor:
    """Weights of trajectories of one token each: their scales, since every token is kept."""
    return top_scaled(mean, torch.arange(len(mean)), where, share=1.0, min_scale=least)


def column(*x: float) -> torch.Tensor:
    return torch.tensor(x, dtype=torch.float64)


def forest_of(*lengths: int, **fields: list) -> Forest:
    records = []
    for i, n in enumerate(lengths):
        turn = {"action": [5] * n, "logprob": [-1.0] * n}
        row_fields = {k: v[i] for k, v in fields.items()}
        if "trainable" in row_fields:
            turn["trainable"] = row_fields.pop("trainable")
        record = {"schema": "gxpo.rollouts/1", "group": "a", "id": f"t{i}", "prompt": [1, 2], "turns": [turn]}
        records.append(record | {"reward": 1.0} | row_fields)
    return Forest.from_records(records)


def test_card() -> None:
    d = column(0.02, 0.5, -0.3, 0.0, 1.0)
    depends = dependency(column(0, 0, 0, 0, 0), d)
    assert depends.tolist() == pytest.approx([0.000201, 0.148721, 0.040818, 0.0, 0.718282], abs=6e-7)
    one = torch.zeros(5, dtype=torch.int64)
    is_kept = top_scaled(depends, one, one == 0) > 0
    assert is_kept.tolist() == [False, True, False, False, True]
    # x = [0, .25, 1], mean 5/12: .9 + .1 * 12/5 * x
    scale = scales(column(2.0, 2.5, 4.0), torch.ones(3, dtype=torch.bool), 0.9)
    assert scale.tolist() == pytest.approx([0.90, 0.96, 1.14])
    assert float(scale.mean()) == pytest.approx(1.0)


def test_what_two_forward_passes_may_differ_by_is_no_dependence() -> None:
    assert dependency(column(-1.0, -1.0, -1.0), column(-1.0 + 3e-7, -1.0 - 1e-6, -1.0 + 2e-5)).tolist() == [
        0.0,
        0.0,
        pytest.approx(2e-10, rel=1e-3),
    ]


def test_clamps() -> None:
    extreme = dependency(column(0, 0, -50), column(50, -50, -50))
    assert extreme.tolist() == [10.0, 10.0, 0.0]  # e^20 - 21 and 19 + e^-20, both above 10


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0.0, 0.1, 0.2, 3.0])), max_size=20), st.floats(0.01, 1))
def test_each_trajectory_keeps_its_share_of_the_most_dependent(rows, share):
    rows = sorted(rows, key=lambda row: row[0])
    owner = torch.tensor([r for r, _ in rows], dtype=torch.int64)
    is_kept = (top_scaled(column(*(v for _, v in rows)), owner, owner >= 0, share=share, min_scale=1.0) > 0).tolist()
    for r in {r for r, _ in rows}:
        ranked = [(v, -i, k) for i, ((q, v), k) in enumerate(zip(rows, is_kept, strict=True)) if q == r]
        k = math.ceil(share * len(ranked) - 1e-9)
        assert [keep for *_, keep in sorted(ranked, reverse=True)] == [True] * k + [False] * (len(ranked) - k)


@given(st.lists(st.tuples(st.floats(0, 10), st.booleans()), min_size=1, max_size=8), st.floats(0, 1))
def test_scales_have_mean_one_over_those_compared(rows, least):
    x, where = column(*(v for v, _ in rows)), torch.tensor([w for _, w in rows])
    scale = scales(x, where, least)
    compared_values = [v for v, w in rows if w]
    if not compared_values or max(compared_values) - min(compared_values) <= 1e-12 * max(compared_values):
        assert scale.tolist() == [1.0] * len(rows)
    else:
        assert float(scale[where].mean()) == pytest.approx(1.0) and bool((scale >= least - 1e-12).all())
        assert bool((scale[where][x[where].argsort()].diff() >= -1e-12).all())


def test_the_part() -> None:
    forest = forest_of(2, 4, 3, trainable=[True, [True, True, False, True], True], compared=[True, True, False])
    proximal = column(*[-1.0] * 9)
    d = column(0.5, 0.0, 0.3, 1.0, 9.0, 0.2, 2.0, 0.0, 0.0)  # the 9 is of a token that is not trained
    signals = {"proximal_logprob": proximal, "masked_logprob": proximal + d}
    weight = perception_weight(share=0.4, min_scale=0.5)(forest, torch.ones(9), signals, 0)
    # k3 of .5, .3, 1, .2, 2 = .148721, .049859, .718282, .021403, 4.389056; means .074361, .263181, 1.463019
    # of the first two x = [0, 1], mean 1/2: scales .5 and 1.5; the third is not compared: x held at 1
    # ceil(.4 * [2, 3, 3]) = [1, 2, 2] tokens; of the third's two zeros the earlier
    assert weight.tolist() == pytest.approx([0.5, 0, 1.5, 1.5, 1, 0, 1.5, 1.5, 0])  # what is not trained weighs 1
    assert weight.dtype == torch.float64


def test_equal_dependence_changes_no_scale() -> None:
    forest = forest_of(2, 2)
    signals = {"proximal_logprob": column(-1, -2, -1, -2), "masked_logprob": column(-1.5, -2.5, -1.5, -2.5)}
    assert perception_weight(share=1.0)(forest, torch.ones(4), signals, 0).tolist() == [1.0] * 4
    assert perception_weight(share=0.5)(forest, torch.ones(4), signals, 0).tolist() == [1.0, 0.0, 1.0, 0.0]
    assert perception_weight(share=1.0)(
        Forest.from_records([]), torch.ones(0), {k: v[:0] for k, v in signals.items()}, 0
    ).shape == (0,)


def test_errors() -> None:
    assert perception_weight().needs == ("masked_logprob",)
    signals = {"proximal_logprob": column(-1, -1), "masked_logprob": column(-1, math.nan)}
    with pytest.raises(MissingSignal, match="nan for 1 of 2"):
        perception_weight()(forest_of(2), torch.ones(2), signals, 0)
    for wrong in ({"share": 0.0}, {"share": 1.1}, {"min_scale": -0.1}):
        with pytest.raises(ConfigError, match=r"weight\.perception"):
            perception_weight(**wrong)
