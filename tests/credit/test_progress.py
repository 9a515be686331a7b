"""Gains in belief as credit: the card's segments, sums that telescope, and GRPO without them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.strategies import forests

import gxpo
from gxpo.credit import GroupRelative
from gxpo.credit.progress import Progress, progress
from gxpo.errors import ConfigError
from gxpo.forest import Forest

Grow = Callable[..., Forest]
F64 = torch.float64


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=F64)


def test_card() -> None:
    """C = [.2, .3, .25, .8]: gains [.1, -.05, .55]; with A = .5 and alpha 1 [.6, .45, 1.05]; logs of 1.5, 5/6, 3.2."""
    before, after = column(0.2, 0.3, 0.25), column(0.3, 0.25, 0.8)
    assert progress(before, after).tolist() == pytest.approx([0.1, -0.05, 0.55])
    assert (0.5 + progress(before, after)).tolist() == pytest.approx([0.6, 0.45, 1.05])
    assert progress(before, after, "log").tolist() == pytest.approx([0.405465, -0.182322, 1.163151], abs=1e-6)
    assert float(progress(before, after).sum()) == pytest.approx(0.8 - 0.2)


def test_what_is_not_known_gains_nothing_and_a_belief_of_0_has_a_log() -> None:
    assert progress(column(math.nan, 0.5), column(0.5, math.nan)).tolist() == [0.0, 0.0]
    assert progress(column(0.0, 0.0), column(0.0, 1.0), "log")[0] == 0.0
    assert math.isfinite(float(progress(column(0.0), column(1.0), "log")))


@settings(max_examples=25, deadline=None)
@given(forest=forests(), alpha=st.sampled_from([0.0, 1.0, 2.5]), seed=st.integers(0, 99))
def test_it_is_added_entry_by_entry(forest: Forest, alpha: float, seed: int) -> None:
    rng = random.Random(seed)
    before = [rng.choice([0.1, 0.4, math.nan]) for _ in range(forest.n_entries)]
    after = [rng.choice([0.2, 0.9, math.nan]) for _ in range(forest.n_entries)]
    signals = {"belief_before": column(*before), "belief_after": column(*after)}
    m = gxpo.method("grpo_vps", {"credit.add.progress.alpha": alpha})
    plain, found = gxpo.method("grpo").advantages(forest), m.advantages(forest, signals)
    for p in range(forest.n_entries):
        gain = alpha * (after[p] - before[p])
        if math.isnan(gain) or not bool(forest.scored[forest.path_trajectory[p]]):
            gain = 0.0
        assert float(found[p]) == pytest.approx(float(plain[p]) + gain, abs=1e-12)


def test_without_alpha_grpo_vps_is_grpo(grow: Grow) -> None:
    forest = grow([("a", 1.0, [2, 1]), ("a", 0.0, [3]), ("b", 0.5, [1])])
    signals = {"belief_before": torch.rand(7).double(), "belief_after": torch.rand(7).double()}
    found = gxpo.method("grpo_vps", {"credit.add.progress.alpha": 0.0}).advantages(forest, signals)
    assert torch.equal(found, GroupRelative()(forest, {}, 0))


def test_grpo_vps_asks_for_segments_and_joint_probabilities() -> None:
    m = gxpo.method("grpo_vps")
    assert "segments" in m.requires and m.signals["answer_belief"].reduce == "joint"
    assert m.signals["answer_belief"].at == "segment" and m.segmenter.segments == 4


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"progress\.form is 'ratio'"):
        Progress(form="ratio")  # type: ignore[arg-type]  # wrong on purpose
    for alpha in (-0.1, math.inf, math.nan):
        with pytest.raises(ConfigError, match=r"progress\.alpha"):
            Progress(alpha=alpha)
