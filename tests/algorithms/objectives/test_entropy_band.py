"""EPO: the card's numbers, a loop with hand-derived slopes, turns, the history of a run that is resumed."""

from __future__ import annotations

import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.algorithms.objectives.conftest import figures_of
from tests.sampling.rollouts.resumed import check_resumed

import gxpo
from gxpo.algorithms.objectives import Entropy
from gxpo.algorithms.objectives.entropy_band import EntropyBand, band_penalty
from gxpo.base.errors import CheckpointError, ConfigError, MissingSignal
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import PolicyTokens

F64 = torch.float64


def column(*x):
    return torch.tensor(x, dtype=F64)


def episodes(*rows):
    """Each row: the lengths of an episode's turns."""
    return Forest.from_records(
        [
            {"schema": "gxpo.rollouts/1", "group": "a", "id": f"t{i}", "prompt": [1, 2], "reward": 1.0}
            | {"turns": [{"observation": [3], "action": [9] * n, "logprob": [-1.0] * n} for n in row]}
            for i, row in enumerate(rows)
        ]
    )


def value_and_slope(term, forest, entropy):
    x = entropy.clone().requires_grad_()
    policy = PolicyTokens(-entropy, -entropy, entropy=x)
    zero = torch.zeros(len(entropy), dtype=F64)
    value = term(forest, policy, zero, zero + 1, {}, 0)[0]
    return float(value.detach()), torch.autograd.grad(value, x)[0].tolist()


def with_history(term, *means, steps=1):
    """The term after steps in which turn k had mean entropy means[k]."""
    for _ in range(steps):
        term.adjust({f"entropy_turn_{k}": m for k, m in enumerate(means)})
    return term


# ---------------------------------------------------------------- the card
def test_card():
    h = column(0.5, 1.2, 0.05)
    assert band_penalty(h, column(0.6, 0.6, 0.6), hinge=False).tolist() == pytest.approx([0.0, 0.1, 0.1])
    published = with_history(EntropyBand(hinge=False, control=None), 0.6)
    value, slope = value_and_slope(published, episodes([3]), h)
    assert value == pytest.approx(-0.000516667, abs=1e-9)
    assert slope == pytest.approx([-0.001 / 3] * 3)  # of the bonus alone: the published penalty has no gradient


def test_the_hinge_cancels_the_bonus_above_the_band():
    # the band is (.3, .9): distances 0, .3, .25
    term = with_history(EntropyBand(control=None), 0.6)
    value, slope = value_and_slope(term, episodes([3]), column(0.5, 1.2, 0.05))
    assert value == pytest.approx(-0.001 * (1.75 - 0.55) / 3)
    assert slope == pytest.approx([-0.001 / 3, 0.0, -0.002 / 3])


def test_without_history_or_penalty_it_is_the_plain_bonus():
    forest, h = episodes([2, 1], [3]), column(0.1, 0.9, 2.0, 0.4, 0.3, 0.2)
    unknown = EntropyBand(0.3, "token_mean", control=None)
    free = with_history(EntropyBand(0.3, "token_mean", control=None, smoothing=0.0), 0.1, 0.1)
    for term in (unknown, free):
        assert value_and_slope(term, forest, h) == value_and_slope(Entropy(0.3), forest, h)
    off = EntropyBand(0.0)
    assert off.outputs == ("logprob",) and not off.active(forest, column(*[0.0] * 6), column(*[1.0] * 6)).any()


# ---------------------------------------------------------------- a loop
ROW = st.lists(st.integers(1, 3), min_size=1, max_size=3)


@settings(max_examples=60, deadline=None)
@given(st.lists(ROW, min_size=1, max_size=4), st.data())
def test_value_and_slope_equal_a_loop(rows, data):
    forest = episodes(*rows)
    h = data.draw(
        st.lists(st.sampled_from([0.01, 0.4, 0.77, 1.9, 5.0]), min_size=forest.n_entries, max_size=forest.n_entries)
    )
    history = data.draw(st.lists(st.sampled_from([0.2, 0.6, 1.1]), max_size=3))
    smooth, hinge = data.draw(st.sampled_from([0.0, 0.5, 1.0])), data.draw(st.booleans())
    term = with_history(EntropyBand(0.2, control=None, smoothing=smooth, hinge=hinge), *history)
    total, slopes, at = 0.0, [], iter(h)
    for row in rows:
        for k, n in enumerate(row):
            for _ in range(n):
                x, share = next(at), 1 / (len(rows) * len(row) * n)
                penalty = slope = 0.0
                if k < len(history) and not 0.5 * history[k] < x < 1.5 * history[k]:
                    below = x <= 0.5 * history[k]
                    penalty = abs(x - (0.5 if below else 1.5) * history[k]) if hinge else 0.1
                    slope = (-1.0 if below else 1.0) if hinge and penalty else 0.0
                total -= 0.2 * share * (x - smooth * penalty)
                slopes.append(-0.2 * share * (1 - smooth * slope))
    value, slope = value_and_slope(term, forest, column(*h))
    assert value == pytest.approx(total) and slope == pytest.approx(slopes)


def test_trainable_tokens_of_weighted_trajectories_count():
    records = episodes([2, 2], [1]).to_records()
    records[0]["turns"][0]["trainable"] = [True, False]
    records[0]["turns"][1]["trainable"] = False  # a turn without any is none
    records[1]["weight"] = 0.0  # counts, and is not trained
    forest = Forest.from_records(records)
    value, slope = value_and_slope(EntropyBand(1.0, control=None), forest, column(0.5, 9.0, 9.0, 9.0, 0.3))
    assert value == pytest.approx(-0.25) and slope == pytest.approx([-0.5, 0, 0, 0, 0])


# ---------------------------------------------------------------- history
def test_the_history_is_the_mean_over_steps():
    forest, term = episodes([2, 1], [2]), EntropyBand()
    zero = torch.zeros(5, dtype=F64)
    for h in (column(0.2, 0.4, 1.0, 0.6, 0.8), column(0.0, 0.0, 3.0, 0.4, 0.4)):
        metrics = figures_of(term, forest, PolicyTokens(-h, -h, entropy=h), zero, zero + 1)
        term.adjust(metrics | {"entropy_turn_7_2": 9.0, "entropy": 4.0})
    assert metrics == pytest.approx(
        {
            "entropy_band": metrics["entropy_band"],
            "entropy_band_coef": 0.001,
            "entropy_turn_0": 0.2,
            "entropy_turn_1": 3.0,
        }
    )
    assert term.state_dict() == {"history": {"0": [pytest.approx(0.7), 2.0], "1": [4.0, 2.0]}}


def test_a_resumed_run_goes_on_exactly():
    forest, h = episodes([2, 1], [2]), column(0.2, 0.4, 1.0, 0.6, 0.8)
    uninterrupted = with_history(EntropyBand(), 0.1, 5.0, steps=3)
    other = EntropyBand()
    other.load_state_dict(json.loads(json.dumps(with_history(EntropyBand(), 0.1, 5.0, steps=2).state_dict())))
    with_history(other, 0.1, 5.0)
    assert value_and_slope(other, forest, h) == value_and_slope(uninterrupted, forest, h)
    assert value_and_slope(EntropyBand(), forest, h) != value_and_slope(uninterrupted, forest, h)
    with pytest.raises(CheckpointError, match="history"):
        other.load_state_dict({"factor": 1.0})
    m = gxpo.method("epo")
    with_history(m.terms["entropy_band"], 0.5)
    assert set(m.state_dict()) >= {"objective.entropy_band", "objective.entropy_band.control"}
    assert m.fill(total_steps=3).terms["entropy_band"].state_dict() == {"history": {}}


@pytest.mark.thorough  # as of every control: tests/algorithms/objectives/test_control.py
@pytest.mark.filterwarnings("ignore:reward")
def test_a_run_is_resumed_exactly(tmp_path):
    rows = check_resumed("epo", tmp_path, '"history"', **{"objective.add.entropy_band.control": None})
    assert all(row["entropy_turn_0"] > 0 for row in rows) and rows[0]["entropy_band"] == rows[0]["entropy_turn_0"]


def test_the_weight_falls_over_the_run():
    m = gxpo.method("epo").fill(total_steps=4)
    for step in (1, 2, 3):
        m.adjust({"step": step, "entropy_turn_0": 0.5})
    term = m.terms["entropy_band"]
    assert term.current_coef == 0.001 and term.current_smoothing == pytest.approx(0.8 * math.exp(-1.5))
    assert term.state_dict() == {"history": {"0": [1.5, 3.0]}}
    h = column(0.5, 1.2, 0.05)  # the band is (.25, .75): distances 0, .45, .2
    value, slope = value_and_slope(term, episodes([3]), h)
    w = 0.8 * math.exp(-1.5)
    assert value == pytest.approx(-0.001 * (1.75 - w * 0.65) / 3)
    assert slope == pytest.approx([-0.001 / 3, -0.001 * (1 - w) / 3, -0.001 * (1 + w) / 3])


def test_what_is_wrong_is_said():
    with pytest.raises(MissingSignal, match="entropy"):
        EntropyBand()(episodes([1]), PolicyTokens(column(-1.0), column(-1.0)), column(0.0), column(1.0), {}, 0)[0]
    for bad in ({"low": 1.2}, {"high": 0.9}, {"smoothing": -1.0}, {"coef": -0.1}):
        with pytest.raises(ConfigError, match="entropy_band"):
            EntropyBand(**bad)
    with pytest.raises(ConfigError, match="aggregate"):
        EntropyBand(aggregate="mean")
