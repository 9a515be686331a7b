"""S-GRPO: the card's weights, the loop, what it reduces to."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.algorithms.weighting.verdict_rows import forest_of, group_of, part_of, peers_of, rows_of_verdicts, weighted

from gxpo.algorithms.weighting.group_curves import noise_aware
from gxpo.base.errors import ConfigError


def noise_aware_weight(**options):
    return part_of("s_grpo", "noise_aware", **options)


def by_hand(p: float, q: float) -> float:
    t = min(max((p - q) / (1 - 2 * q), 0.0), 1.0)
    return (1 - 2 * q) * t * (1 - t) / (math.sqrt(p * (1 - p) + 1e-8) * math.sqrt(t * (1 - t) + 1e-8))


def test_card() -> None:
    rates = torch.arange(9) / 8
    expected = [0, 0.420883, 0.721110, 0.784857, 0.8, 0.784857, 0.721110, 0.420883, 0]
    assert noise_aware(rates, flip=0.1).tolist() == pytest.approx(expected, abs=1e-6)
    assert noise_aware(rates, flip=0.0).tolist() == pytest.approx([0, 1, 1, 1, 1, 1, 1, 1, 0], abs=1e-6)
    assert noise_aware(rates, flip=0.15)[[1, 7]].tolist() == [0.0, 0.0]  # a lone success of 8 is taken for an error


def test_card_of_the_method() -> None:
    found = weighted("s_grpo", forest_of(group_of(1, 1, 0, 0, 0, 0, 0, 0)), {"credit.eps": 1e-8})
    assert found == pytest.approx([1.168332] * 2 + [-0.389444] * 6, abs=1e-6)


@settings(max_examples=40, deadline=None)
@given(rows_of_verdicts, st.sampled_from([0.0, 0.1, 0.3]))
def test_it_equals_a_loop(rows, flip) -> None:
    forest = forest_of(rows)
    found = noise_aware_weight(flip=flip)(forest, torch.ones(forest.n_entries), {}, 0)
    for r, (g, *_) in enumerate(rows):
        peers = peers_of(rows, g)
        p = sum(peers) / len(peers) if peers else 0.0
        assert found[forest.path_of(r)].tolist() == pytest.approx([by_hand(p, flip)] * len(forest.path_of(r)))


@given(st.floats(0, 1), st.floats(0, 0.49))
def test_it_is_symmetric_and_never_above_the_share_of_sound_verdicts(p, q) -> None:
    w = float(noise_aware(torch.tensor(p, dtype=torch.float64), flip=q))
    assert 0 <= w <= 1 - 2 * q + 1e-9
    assert w == pytest.approx(float(noise_aware(torch.tensor(1 - p, dtype=torch.float64), flip=q)), abs=1e-6)


def test_verdicts_go_before_scores_and_unscored_rows_have_no_part() -> None:
    said = forest_of([("a", 0.5, 1, {"success": s}) for s in (True, False, False, False)])
    assert noise_aware_weight()(said, torch.ones(4), {}, 0).tolist() == pytest.approx([by_hand(0.25, 0.1)] * 4)
    unsaid = forest_of([("a", r, 1, {"success": None}) for r in (0.5, 0.0, 0.0, -1.0)])
    assert noise_aware_weight()(unsaid, torch.ones(4), {}, 0).tolist() == pytest.approx([by_hand(0.25, 0.1)] * 4)
    whole = forest_of(group_of(1, 0, 0, None))
    assert weighted("s_grpo", whole)[:3] == weighted("s_grpo", forest_of(group_of(1, 0, 0)))
    assert weighted("s_grpo", whole)[3] == 0.0


def test_options() -> None:
    with pytest.raises(ConfigError, match=r"flip is 0\.5"):
        noise_aware_weight(flip=0.5)
    with pytest.raises(ConfigError, match="eps"):
        noise_aware_weight(eps=0.0)
