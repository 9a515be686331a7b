"""How much better a step did than the steps before."""

from __future__ import annotations

import json
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gxpo.algorithms.signals.improvement import improvement, standardised_gain
from gxpo.base.errors import CheckpointError, ConfigError
from gxpo.forest.forest import Forest
from gxpo.parts.definition import kind_of

Improvement = kind_of(improvement)

TOOLS: Any = None  # it uses none


def grown(*rewards: float | None, **borrowed: float) -> Forest:
    """Rewards of the policy's rollouts, and one rollout of each origin that is named."""
    rows = [(r, "policy") for r in rewards] + [(r, origin) for origin, r in borrowed.items()]
    return Forest.from_records(
        [
            {"schema": "gxpo.rollouts/1", "group": "g", "id": str(i), "prompt": [1], "turns": [{"action": [2]}],
             "reward": r, "origin": origin}
            for i, (r, origin) in enumerate(rows)
        ]
    )  # fmt: skip


def seen(part: Any, forest: Forest) -> float:
    actual = part.compute(forest, {}, TOOLS)["improvement"]
    assert actual.shape == (forest.n_trajectories,) and len(set(actual.tolist())) == 1
    part.learn(forest, {}, TOOLS)
    return float(actual[0])


def test_the_cards_numbers() -> None:
    # mean .415, std .0129099: (.46 - .415) / .0129099 = 3.485685; (.38 - .415) / .0129099 = -2.711088, times .1
    part = Improvement(window=4, eps=0.0)
    assert [seen(part, grown(r)) for r in (0.40, 0.42, 0.41, 0.43)] == [0.0] * 4
    state = part.state_dict()
    assert seen(part, grown(0.46)) == pytest.approx(3.485685, abs=2e-6)
    part.load_state_dict(state)
    assert seen(part, grown(0.38)) == pytest.approx(-0.271109, abs=2e-6)


@given(st.lists(st.floats(0, 1), min_size=3, max_size=12), st.integers(2, 4), st.sampled_from([0.0, 0.1, 1.0]))
def test_it_equals_a_loop(means: list[float], window: int, falling: float) -> None:
    part = Improvement(window=window, decline_factor=falling)
    for i, now in enumerate(means):
        before = means[:i][-window:]
        expected = 0.0
        if len(before) == window and max(before) - min(before) > 1e-12 * max(map(abs, before)):
            x = (now - sum(before) / window) / (statistics.stdev(before) + 1e-6)
            expected = x if x >= 0 else falling * x
        assert seen(part, grown(now)) == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_only_the_policys_own_scored_rollouts_count() -> None:
    part = Improvement(window=2)
    for forest in (grown(0.0, 1.0, None, replay=9.0), grown(1.0, 0.75, demonstration=1.0, baseline=0.0)):
        seen(part, forest)
    assert part.memory == {"means": [0.5, 0.875]}
    assert seen(part, grown(None, replay=1.0)) == 0.0 and part.memory == {"means": [0.5, 0.875]}  # nothing to judge by


def test_a_flat_history_gives_0_and_the_bound_holds() -> None:
    assert standardised_gain([0.1, 0.1, 0.1], 0.9) == 0.0
    # mean .0005, std .001 / sqrt 2 = .000707107: .4995 / .000708107 = 705.4
    for bound, expected in ((5.0, 5.0), (float("inf"), pytest.approx(705.4, abs=0.1))):
        part = Improvement(window=2, bound=bound)
        part.load_state_dict({"means": [0.0, 1e-3]})
        assert seen(part, grown(0.5)) == expected


def test_read_back_it_goes_on_and_parts_share_no_memory() -> None:
    part, other = Improvement(window=3), Improvement(window=3)
    for r in (0.1, 0.4, 0.2, 0.7):
        seen(part, grown(r))
    assert part == other and other.memory == {} and "memory" not in repr(part)
    other.load_state_dict(json.loads(json.dumps(part.state_dict())))
    assert [seen(part, grown(r)) for r in (0.3, 0.9)] == [seen(other, grown(r)) for r in (0.3, 0.9)]
    with pytest.raises(CheckpointError, match="improvement"):
        other.load_state_dict({"rows": []})


@pytest.mark.parametrize("wrong", [{"window": 1}, {"decline_factor": -0.1}, {"eps": -1.0}, {"bound": 0.0}])
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"signal\.improvement"):
        Improvement(**wrong)
