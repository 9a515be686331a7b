"""The value probe: features against loops, cross-fitting, memory, runs that are resumed."""

from __future__ import annotations

import math
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.strategies import forests

from gxpo.algorithms.signals.ridge_probe import ridge
from gxpo.algorithms.signals.value_probe import ValueProbe, cross_fitted, probe_features
from gxpo.base.errors import ConfigError
from gxpo.forest.forest import Forest

F64 = torch.float64


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=F64)


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


# ---------------------------------------------------------------- features
@settings(max_examples=25, deadline=None)
@given(forest=forests(), tokens=st.integers(1, 4), seed=st.integers(0, 99))
def test_features_equal_a_loop(forest: Forest, tokens: int, seed: int) -> None:
    hidden, entropy = noise(forest.n_tokens, 3, seed=seed).float(), noise(forest.n_entries, seed=seed + 1)
    actual = probe_features(forest, hidden, entropy, tokens)
    for r in range(forest.n_trajectories):
        entries = forest.path_of(r).tolist()
        if not entries:
            assert actual[r].tolist() == [0.0] * 9
            continue
        first = int(forest.path_token[entries[0]])
        way = []
        for node in forest.path(int(forest.token_node[first])).tolist():
            way += range(int(forest.first_token[node]), int(forest.first_token[node + 1]))
        before = way[: way.index(first)][-tokens:]
        after = [int(forest.path_token[p]) for p in entries[-tokens:]]
        rows = np.asarray(hidden, dtype=np.float64)
        text = np.asarray(entropy)[entries]
        expected = [
            *(rows[before].mean(0) if before else np.zeros(3)),
            *rows[after].mean(0),
            *(text.mean(), text.std(), text.max()),
        ]
        assert actual[r].tolist() == pytest.approx(expected, abs=1e-9)


# ---------------------------------------------------------------- cross-fitting
def test_card_of_two_rollouts() -> None:
    """g(phi1) = .7, g(phi2) = .3: b = [.3, .7]."""
    actual = cross_fitted(column(0.7, 0.3), column(1, 0), torch.tensor([0, 0]), torch.tensor([True, True]))
    assert actual.tolist() == pytest.approx([0.3, 0.7])


def test_of_several_the_mean_of_the_others() -> None:
    """Estimates [.1, .2, .6], the fourth not asked: its own is out, and it is measured against the three."""
    requests = torch.tensor([True, True, True, False])
    actual = cross_fitted(column(0.1, 0.2, 0.6, 9.0), column(1, 1, 1, 1), torch.zeros(4).long(), requests)
    assert actual.tolist() == pytest.approx([0.4, 0.35, 0.15, 0.3])


def test_alone_a_rollout_is_its_own_baseline() -> None:
    actual = cross_fitted(column(0.4, 0.5), column(0.75, math.nan), torch.tensor([0, 1]), torch.tensor([True, False]))
    assert actual.tolist() == [0.75, 0.0]


# ---------------------------------------------------------------- the part
class Hidden:
    """A learner whose hidden state of a token is a row of a table, by its place in the forest."""

    def __init__(self, width: int = 4, seed: int = 0) -> None:
        self.width, self.seed, self.added = width, seed, {}

    def hidden(self, forest: Forest, layer: int = -1) -> torch.Tensor:
        table = noise(forest.n_tokens, self.width, seed=self.seed).float()
        for token, by in self.added.items():
            table[token] += by
        return table


def tools_of(learner: Any) -> Any:
    return SimpleNamespace(learner=learner, decode=str, blank_id=0, step=1, seed=0)


def groups(sizes: list[int], rewards: list[float | None]) -> Forest:
    """Single turns of two tokens, each group with a prompt of its own."""
    prompts = [[100 + g, 7] for g in range(len(sizes))]
    taken = iter(rewards)
    records = [
        {
            "schema": "gxpo.rollouts/1",
            "group": f"g{g}",
            "id": f"{g}.{i}",
            "prompt": prompts[g],
            "turns": [{"action": [3 + i, 4], "logprob": [-1.0, -1.0]}],
            "reward": next(taken),
        }
        for g, size in enumerate(sizes)
        for i in range(size)
    ]
    return Forest.from_records(records)


def stepped(part: ValueProbe, forest: Forest, learner: Any, entropy: torch.Tensor) -> tuple[torch.Tensor, dict]:
    signals = {"entropy": entropy}
    baseline = part.compute(forest, signals, tools_of(learner))["baseline"]
    return baseline, part.learn(forest, signals, tools_of(learner))


def warm(part: ValueProbe, steps: int = 3) -> None:
    for step in range(steps):
        forest = groups([2] * 4, [random.Random(8 * step + i).choice((0.0, 1.0)) for i in range(8)])
        stepped(part, forest, Hidden(seed=step), noise(forest.n_entries, seed=step).abs())


def test_before_fitting_the_baseline_is_the_others_mean() -> None:
    part = ValueProbe(min_rows=6)
    forest = groups([3, 2, 1], [1.0, 0.0, 0.5, 1.0, 0.0, 0.25])
    baseline, figures = stepped(part, forest, Hidden(), noise(12).abs())
    assert baseline.tolist() == pytest.approx([0.25, 0.75, 0.5, 0.0, 1.0, 0.25])
    assert figures["probe_used"] == 0.0 and figures["probe_rows"] == 0.0
    assert figures["baseline_error"] == figures["group_mean_error"] == pytest.approx((0.5625 * 2 + 0 + 1 + 1) / 5)
    assert part.rows == 5  # a rollout alone teaches nothing about others
    baseline, figures = stepped(part, forest, Hidden(), noise(12).abs())
    assert figures["probe_used"] == 0.0 and figures["probe_rows"] == 5.0
    _, figures = stepped(part, forest, Hidden(), noise(12).abs())
    assert figures["probe_used"] == 1.0 and figures["probe_rows"] == 10.0


@pytest.mark.parametrize("size", [2, 3])
def test_nothing_a_rollout_did_is_in_its_own_baseline(size: int) -> None:
    """Change the hidden states and the entropies of rollout 0's actions, and its outcome: its baseline stays, but
    for the rounding of a sum, its siblings' move with the states and not with the outcome."""
    forest = groups([size, 2], [1.0] + [0.0] * (size - 1) + [1.0, 0.0])
    entropy = noise(forest.n_entries, seed=9).abs()
    part = ValueProbe(min_rows=8)
    warm(part)
    tools = tools_of(Hidden(seed=5))
    before = part.compute(forest, {"entropy": entropy}, tools)["baseline"]
    entries = forest.path_of(0)
    tools.learner.added = dict.fromkeys(forest.path_token[entries].tolist(), 2.5)
    moved = part.compute(forest, {"entropy": entropy.index_fill(0, entries, 7.0)}, tools)["baseline"]
    assert float(moved[0]) == pytest.approx(float(before[0]), rel=1e-12, abs=0)
    assert bool((moved[1:size] != before[1:size]).all()) and torch.equal(moved[size:], before[size:])
    outcome = forest.outcome.index_fill(0, torch.tensor([0]), -3.0)
    paid = part.compute(forest.with_rewards(outcome), {"entropy": entropy}, tools_of(Hidden(seed=5)))["baseline"]
    assert torch.equal(paid, before)  # fitted on earlier steps, the outcomes of this one are nowhere


def test_unscored_rollouts_are_not_asked_and_teach_nothing() -> None:
    part = ValueProbe(min_rows=8)
    warm(part)
    rows = part.rows
    forest = groups([3, 2], [1.0, None, 0.0, None, 1.0])
    baseline, _ = stepped(part, forest, Hidden(seed=3), noise(10).abs())
    features = probe_features(forest, Hidden(seed=3).hidden(forest), noise(10).abs(), part.tokens)
    again = ValueProbe(min_rows=8)
    warm(again)
    w, b = ridge(again.memory["features"], again.memory["target"], again.ridge)
    estimate = (features @ w + b).tolist()
    assert baseline.tolist() == pytest.approx(
        [estimate[2], (estimate[0] + estimate[2]) / 2, estimate[0], estimate[4], 1.0]
    )
    assert part.rows == rows + 2


def test_the_buffer_slides_and_a_loaded_one_goes_on_alike() -> None:
    part = ValueProbe(min_rows=4, buffer=10)
    warm(part)
    assert part.rows == 10
    other = ValueProbe(min_rows=4, buffer=10)
    other.load_tensors({k: v.clone() for k, v in part.tensors().items()})
    other.load_state_dict(part.state_dict())
    forest, entropy = groups([2, 2], [1.0, 0.0, 0.0, 0.0]), noise(8).abs()
    one, two = stepped(part, forest, Hidden(seed=7), entropy), stepped(other, forest, Hidden(seed=7), entropy)
    assert torch.equal(one[0], two[0]) and one[1] == two[1]
    assert all(torch.equal(part.tensors()[k], other.tensors()[k]) for k in part.tensors())


def test_a_probe_that_can_know_the_task_beats_the_other_rollout() -> None:
    """Prompts whose hidden state tells the chance of success: the probe's baseline errs less than a sibling's luck."""

    class Telling:
        chance: list[float]

        def hidden(self, forest: Forest, layer: int = -1) -> torch.Tensor:
            row = torch.zeros(forest.n_tokens, 2)
            for g, c in enumerate(self.chance):
                row[(forest.token == 100 + g), 0] = c
            return row

    rng, part, figures, learner = random.Random(0), ValueProbe(min_rows=64), {}, Telling()
    for _ in range(6):
        learner.chance = [rng.random() for _ in range(40)]
        rewards = [float(rng.random() < c) for c in learner.chance for _ in range(2)]
        forest = groups([2] * 40, rewards)
        _, figures = stepped(part, forest, learner, torch.zeros(forest.n_entries, dtype=F64))
    assert figures["probe_used"] == 1.0
    assert figures["baseline_error"] < 0.8 * figures["group_mean_error"]


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="min_rows"):
        ValueProbe(min_rows=2000)
