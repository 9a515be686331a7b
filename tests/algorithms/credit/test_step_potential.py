"""Step potentials: the card's numbers, a loop on random forests with segments, sums, reduction to whitened outcomes."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.strategies import forests

import gxpo
from gxpo.algorithms.credit.step_potential import saturation, shaping, step_potential
from gxpo.base.errors import ConfigError
from gxpo.forest.forest import Forest
from gxpo.parts.registry import CREDITS

StepPotential = CREDITS["step_potential"]

Grow = Callable[..., Forest]
F64 = torch.float64
CHAIN = torch.tensor([-1, 0, 1, 2])


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=F64)


def test_card_potentials() -> None:
    actual = step_potential(column(1, 0, 1, 0, 0.5, 0.8), column(1, 1, 0, 0, 0.5, 0.9))
    assert actual.tolist() == pytest.approx([1, -1, 0.5, 0, 0.125, 0.58])


def test_card_saturation() -> None:
    """Phi = [.1, .95, .96, .97], alpha .5: 0, 0, 1, 2 saturated steps before; 1 - .5 (1 - e^-1) = .683940."""
    actual = saturation(column(0.1, 0.95, 0.96, 0.97), CHAIN)
    assert actual.tolist() == pytest.approx([1, 1, 0.683940, 0.567668], abs=1e-6)
    assert saturation(column(0.1, 0.95, 0.96, 0.97), CHAIN, alpha=0.0).tolist() == [1.0] * 4
    assert saturation(column(math.nan, 0.95, math.nan, 1.0), CHAIN)[3] == pytest.approx(0.683940, abs=1e-6)


def test_card_shaping_and_the_sum() -> None:
    """Changes [0, .5, -.2, .7] brought to [2/9, 7/9, 0, 1]; with A = .5, xi = .5 and the f above."""
    g = shaping(column(0, 0.5, -0.2, 0.7))
    assert g.tolist() == pytest.approx([-0.537091, 0.390690, -0.785940, 0.932342], abs=1e-6)
    f = saturation(column(0.1, 0.95, 0.96, 0.97), CHAIN)
    assert (0.5 * f + 0.5 * g).tolist() == pytest.approx([0.231454, 0.695345, -0.051000, 0.750005], abs=1e-6)
    assert float(g.sum()) == pytest.approx(0.0, abs=1e-12)


def test_shaping_without_a_spread_or_members() -> None:
    assert shaping(column(0.3, 0.3)).tolist() == [0.0, 0.0]
    assert shaping(column(0.3, math.nan)).tolist() == [0.0, 0.0]
    assert shaping(column()).shape == (0,)
    where = torch.tensor([True, True, False, False])
    actual = shaping(column(0.0, 1.0, 5.0, math.nan), where)  # the third is held at 1, as the second is
    middle = (1 + math.e) / 2
    assert actual.tolist() == pytest.approx([1 - middle, math.e - middle, math.e - middle, 0.0])


def probed(rng: random.Random, forest: Forest) -> tuple[dict[str, torch.Tensor], dict[tuple[int, int], Any]]:
    """Signals, equal over each (step, segment), and the same by segment; some are not known."""
    known_values: dict[tuple[int, int], Any] = {}
    rows = []
    for p in range(forest.n_entries):
        key = (int(forest.path_step[p]), int(forest.segment[forest.path_token[p]]))
        value = (rng.choice([0.05, 0.5, 0.99, math.nan]), rng.choice([0.2, 1.0]))
        rows.append(known_values.setdefault(key, value) if key[1] >= 0 else (math.nan, math.nan))
    table = torch.tensor(rows, dtype=F64).reshape(-1, 2)
    return {"belief_after": table[:, 0], "answer_confidence": table[:, 1]}, known_values


@settings(max_examples=40, deadline=None)
@given(forest=forests(), seed=st.integers(0, 999), alpha=st.sampled_from([0.0, 0.5]), xi=st.sampled_from([0.0, 0.5]))
def test_equals_a_loop(forest: Forest, seed: int, alpha: float, xi: float) -> None:
    signals, known_value = probed(random.Random(seed), forest)
    actual = gxpo.method("spae", {"credit.alpha": alpha, "credit.xi": xi}).advantages(forest, signals)
    outcome, scored = forest.outcome.tolist(), forest.scored.tolist()
    f: dict[int, float] = {}
    change: dict[int, tuple[float, bool]] = {}  # of each entry's segment, and whether it enters the statistics
    segments: list[tuple[float, bool]] = []
    for r in range(forest.n_trajectories):
        if not scored[r]:
            continue
        saturated, before, seen_counts = 0, None, {}
        for p in forest.path_of(r).tolist():
            key = (int(forest.path_step[p]), int(forest.segment[forest.path_token[p]]))
            if key[1] < 0:
                continue
            if key not in seen_counts:
                b, c = known_value[key]
                phi = 1.5 * b * c + 0.5 * b - c
                moved = phi - before if before is not None else 0.0 * phi
                seen_counts[key] = (1 - alpha * (1 - math.exp(-saturated)), moved)
                segments.append((moved, bool(forest.compared[r])))
                before, saturated = phi, saturated + int(phi > 0.9)
            f[p], change[p] = seen_counts[key][0], (seen_counts[key][1], bool(forest.compared[r]))
    counted = [x for x, enters in segments if enters and not math.isnan(x)]
    flat = not counted or max(counted) - min(counted) <= 1e-12 * max(map(abs, counted))

    def raised(x: float) -> float:
        return math.exp(min(max((x - min(counted)) / (max(counted) - min(counted)), 0.0), 1.0))

    middle = 0.0 if flat else statistics.fmean(raised(x) for x in counted)
    raw = [0.0] * forest.n_entries
    for r in range(forest.n_trajectories):
        peers = [
            outcome[q]
            for q in range(forest.n_trajectories)
            if forest.group[q] == forest.group[r] and bool(forest.compared[q]) and scored[q]
        ]
        equal = not peers or max(peers) - min(peers) <= 1e-12 * max(map(abs, peers))
        apart = 0.0
        if scored[r] and peers and not (equal and bool(forest.compared[r])):
            apart = outcome[r] - statistics.fmean(peers)
        for p in forest.path_of(r).tolist():
            x = change.get(p, (math.nan, False))[0]
            gain = 0.0 if flat or math.isnan(x) else raised(x) - middle
            raw[p] = apart * f.get(p, 1.0) + xi * gain
    trained = [
        p for p in range(forest.n_entries) if bool(forest.path_trainable[p]) and scored[forest.path_trajectory[p]]
    ]
    members = [raw[p] for p in trained if bool(forest.compared[forest.path_trajectory[p]])]
    expected = [0.0] * forest.n_entries
    if len(members) > 1 and max(members) - min(members) > 1e-12 * max(map(abs, members)):
        spread = math.sqrt(statistics.variance(members) + 1e-8)
        for p in trained:
            expected[p] = (raw[p] - statistics.fmean(members)) / spread
    assert actual.tolist() == pytest.approx(expected, abs=1e-7)


def test_without_shaping_and_fading_it_is_the_whitened_outcome(grow: Grow) -> None:
    forest = grow([("a", 1.0, [2, 1]), ("a", 0.0, [3]), ("b", 0.5, [1]), ("b", 0.0, [2])])
    forest = forest.replace(segment=torch.where(forest.segment >= -1, 0, 0))
    signals = {name: torch.rand(9).double() for name in ("belief_after", "answer_confidence")}
    plain = gxpo.method("spae", {"credit.alpha": 0.0, "credit.xi": 0.0}).advantages(forest, signals)
    assert torch.allclose(plain, gxpo.method("reinforce_pp_baseline").advantages(forest), atol=1e-12)


def test_settings_and_what_spae_is_made_of() -> None:
    assert StepPotential().learns_from_equal_groups and not StepPotential(xi=0.0).learns_from_equal_groups
    m = gxpo.method("spae")
    assert m.requires == ("segments",) and m.segmenter.text == ".\n\n"
    assert m.signals["answer_belief"].reduce == "mean_prob"
    for wrong in ({"xi": -0.1}, {"alpha": 1.1}, {"xi": math.inf}):
        with pytest.raises(ConfigError, match=r"credit\.(xi|alpha) is"):
            StepPotential(**wrong)
