"""IGPO's turns on one scale: the card's group, a loop on random forests, reductions, what the code once did."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.strategies import forests

import gxpo
from gxpo.algorithms.credit import GroupRelative
from gxpo.algorithms.credit.pooled_turns import pooled_turns
from gxpo.algorithms.credit.recursion import next_in
from gxpo.base.errors import ConfigError
from gxpo.forest.forest import Forest
from gxpo.parts.registry import CREDITS

PooledTurns = CREDITS["pooled_turns"]

Grow = Callable[..., Forest]
F64 = torch.float64
REWARDS = [[0.1, 0.2, 1.0], [0.0, 0.3], [-0.1, 0.1, 0.0, 0.0]]  # of the card
OWNER = torch.tensor([i for i, row in enumerate(REWARDS) for _ in row])
FLAT = torch.tensor([x for row in REWARDS for x in row], dtype=F64)


def test_card() -> None:
    """Mean .177778, sample std .330824, eps 1e-6; sums of what follows, discount 1."""
    actual = pooled_turns(FLAT, torch.zeros(9).long(), next_in(OWNER))
    expected = [2.317440, 2.552542, 2.485370, -0.167930, 0.369447, -2.149509, -1.309857, -1.074755, -0.537377]
    assert actual.tolist() == pytest.approx(expected, abs=1e-6)


# errata
def test_position_wise_baselines_compare_other_things() -> None:
    """Returns to go less their mean at one position, turns of one token, padding 0: the second turn of the third
    attempt has .1 - (1.2 + .3 + .1) / 3 = -.433333 there, and the fourth, alone at its place, -0 / 3."""
    to_go = [[math.fsum(row[t:]) for t in range(len(row))] for row in REWARDS]
    means = [math.fsum(row[t] for row in to_go if t < len(row)) / 3 for t in range(4)]
    withdrawn = [row[t] - means[t] for row in to_go for t in range(len(row))]
    assert withdrawn[6] == pytest.approx(-0.433333, abs=1e-6) and withdrawn[8] == 0.0
    paper = pooled_turns(FLAT, torch.zeros(9).long(), next_in(OWNER)).tolist()
    assert paper[6] == pytest.approx(-1.309857, abs=1e-6) and paper[8] == pytest.approx(-0.537377, abs=1e-6)


def test_sums_of_centred_rewards_drift_with_length() -> None:
    """Rewards won at the end alone: of two equally good attempts the longer is worse off in its first turn."""
    reward = torch.tensor([1.0, 0.0, 0.0, 1.0], dtype=F64)
    actual = pooled_turns(reward, torch.zeros(4).long(), next_in(torch.tensor([0, 1, 1, 1])), eps=0.0)
    assert float(actual[0]) == pytest.approx(0.5 / math.sqrt(1 / 3)) and float(actual[1]) == pytest.approx(
        -0.5 * 3**0.5
    )


def standardised(x: float, members: list[float], ddof: int, eps: float) -> float:
    """(x - mean) / (std + eps) against the members; 0 where there is nothing to compare."""
    if len(members) <= ddof or max(members) == min(members):
        return 0.0
    spread = math.sqrt(math.fsum((m - statistics.fmean(members)) ** 2 for m in members) / (len(members) - ddof))
    return (x - statistics.fmean(members)) / (spread + eps)


@settings(max_examples=40, deadline=None)
@given(forest=forests(), discount=st.sampled_from([1.0, 0.5, 0.0]), seed=st.integers(0, 999))
def test_equals_a_loop(forest: Forest, discount: float, seed: int) -> None:
    """Random forests with forks, unscored and not compared attempts; some turns' beliefs are not known."""
    rng = random.Random(seed)
    steps = [(rng.choice([0.1, 0.5]), rng.choice([0.1, 0.75, math.nan])) for _ in range(forest.n_steps)]
    of = forest.path_step.tolist()
    signals = {
        "belief_before": torch.tensor([steps[s][0] for s in of], dtype=F64),
        "belief_after": torch.tensor([steps[s][1] for s in of], dtype=F64),
    }
    m = gxpo.method("igpo", {"credit.discount": discount, "credit.ddof": 1, "credit.floor": 0.0})
    actual = m.advantages(forest, signals)
    acts, outcome = set(of), forest.outcome.tolist()
    rewards: list[list[tuple[int, float | None]]] = []
    for r in range(forest.n_trajectories):
        own_values = [s for s in range(forest.n_steps) if int(forest.step_trajectory[s]) == r]
        row: list[tuple[int, float | None]] = []
        for s in own_values:
            gain = steps[s][1] - steps[s][0] if s in acts else math.nan
            row.append((s, outcome[r] if s == own_values[-1] else None if math.isnan(gain) else gain))
        rewards.append(row)
    expected = dict.fromkeys(range(forest.n_steps), 0.0)
    for r, row in enumerate(rewards):
        if not math.isfinite(outcome[r]):
            continue
        peers = [
            x
            for q, other in enumerate(rewards)
            if forest.group[q] == forest.group[r] and bool(forest.compared[q]) and math.isfinite(outcome[q])
            for _, x in other
            if x is not None
        ]
        z_of_row = [0.0 if x is None else standardised(x, peers, 1, 1e-6) for _, x in row]
        for t, (s, _) in enumerate(row):
            expected[s] = math.fsum(discount ** (k - t) * z_of_row[k] for k in range(t, len(row)))
    assert actual.tolist() == pytest.approx([expected[s] for s in of], abs=1e-9)


def test_attempts_of_one_turn_are_grpo(grow: Grow) -> None:
    forest = grow([("a", 1.0, [2]), ("a", 0.0, [3]), ("a", 0.25, [1], {"compared": False}), ("b", 1.0, [1])])
    noise = {name: torch.rand(7).double() for name in ("belief_before", "belief_after")}
    assert torch.equal(PooledTurns(ddof=1, floor=0.0)(forest, noise, 0), GroupRelative()(forest, {}, 0))


def test_equal_rewards_and_single_turns_give_nothing(grow: Grow) -> None:
    forest = grow([("a", 0.5, [1, 1]), ("a", 0.5, [2]), ("b", 1.0, [1])])
    signals = {"belief_before": torch.zeros(5).double(), "belief_after": torch.full((5,), 0.5).double()}
    assert PooledTurns()(forest, signals, 0).tolist() == [0.0] * 5


def test_settings_and_what_igpo_is_made_of() -> None:
    with pytest.raises(ConfigError, match=r"credit\.discount is 1.5"):
        PooledTurns(discount=1.5)
    for wrong in ({"floor": -1.0}, {"scale": "batch"}, {"pool": "turns"}, {"gain": "ratio"}):
        with pytest.raises(ConfigError, match=rf"credit\.{next(iter(wrong))}"):
            PooledTurns(**wrong)
    m = gxpo.method("igpo")
    assert m.requires == () and m.needs == () and m.signals["answer_belief"].unit == "turn"
    assert gxpo.method("igpo@paper").keys["objective.kl.coef"].value == 0.001
