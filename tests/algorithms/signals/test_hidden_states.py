"""Signals from hidden states: TW-GRPO's divergence, mean states, norms, against the model's own."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.learning.llamas import clean_llama, random_forest

from gxpo.algorithms.signals import hidden_states as module
from gxpo.algorithms.signals.hidden_states import (
    disagreement,
    divergence,
    mean_hidden,
    norm_before,
    positions,
    state_norm,
)
from gxpo.base.errors import ConfigError, ModelError
from gxpo.forest.forest import Forest
from gxpo.learning.torch import TorchLearner
from gxpo.parts.definition import kind_of

Disagreement = kind_of(disagreement)

LEARNER = TorchLearner(clean_llama(), lr=0.0)
TOOLS = SimpleNamespace(learner=LEARNER, decode=str, blank_id=0, step=1, seed=0)


def forest_of(rows):
    """(group, action, fields of the record)"""
    return Forest.from_records(
        [
            {"schema": "gxpo.rollouts/1", "group": g, "id": f"t{i}", "prompt": [1, 2], "reward": 1.0}
            | {"turns": [{"action": list(a), "logprob": [-1.0] * len(a), "trainable": fields.pop("trainable", True)}]}
            | fields
            for i, (g, a, fields) in enumerate((g, a, dict(f)) for g, a, f in rows)
        ]
    )


def by_hand(members):
    """D of one position; members: lists of log-probs over the vocabulary."""
    v = len(members[0])
    mean = [sum(m[k] for m in members) / len(members) for k in range(v)]
    total = 0.0
    for m in members:
        for k in range(v):
            d = min(max(mean[k] - m[k], -11.0), 11.0)
            total += math.exp(d) - d - 1
    return total / len(members)


def said(ids, temperature=1.0):
    """Log-probs of what follows each token, by the model itself."""
    with torch.no_grad():
        return (LEARNER.model(torch.tensor([ids])).logits[0].double() / temperature).log_softmax(1).tolist()


LOGPROBS = st.lists(st.floats(-30, 0), min_size=3, max_size=3)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), LOGPROBS), min_size=1, max_size=8), st.integers(0, 2))
def test_divergence_equals_a_loop(rows, ended):
    sizes = [sum(c == k for c, _ in rows) + ended for k in range(3)]
    sizes = [max(s, 1) for s in sizes]
    actual = divergence(
        torch.tensor([lp for _, lp in rows], dtype=torch.float64),
        torch.tensor([c for c, _ in rows]),
        torch.tensor(sizes, dtype=torch.float64),
    )
    for k in range(3):
        own_rows = [lp for c, lp in rows if c == k]
        members = own_rows + [[-math.log(3)] * 3] * (sizes[k] - len(own_rows))
        assert float(actual[k]) == pytest.approx(by_hand(members), rel=1e-9, abs=1e-9)


ROWS = (
    ("a", (5, 6, 7), {}),
    ("a", (5, 8), {}),
    ("a", (9,), {"compared": False}),
    ("a", (9, 9, 9, 9), {"compared": False}),
    ("b", (5, 6), {"sampling": {"temperature": 0.7}}),
    ("b", (3, 4, 5), {"reward": None}),
    ("b", (7, 7, 7), {"trainable": [True, False, True]}),
)


@pytest.mark.parametrize("at_once", [1, 60, 2**23])
def test_the_signal_equals_the_models_own_distributions(at_once):
    """Whatever the chunks; who is not compared, or not scored, is in no mean and has what its group's position has."""
    forest = forest_of(ROWS)
    actual = Disagreement(logits_at_once=at_once).compute(forest, {}, TOOLS)["disagreement"]
    uniform = [-math.log(23)] * 23
    answers = {"a": [ROWS[0], ROWS[1]], "b": [ROWS[4], ROWS[6]]}
    for r, (g, action, fields) in enumerate(ROWS):
        trained = fields.get("trainable", [True] * len(action))
        got = actual[forest.path_of(r)].tolist()
        assert [x for x, t in zip(got, trained, strict=True) if not t] == [0.0] * trained.count(False)
        for place, x in enumerate(x for x, t in zip(got, trained, strict=True) if t):
            members = []
            for _, other, own_value in answers[g]:
                after = said([1, 2, *other], own_value.get("sampling", {}).get("temperature", 1.0))
                kept_values = [i for i, t in enumerate(own_value.get("trainable", [True] * len(other))) if t]
                members.append(after[1 + kept_values[place]] if place < len(kept_values) else uniform)
            past = all(m is uniform for m in members)
            assert x == pytest.approx(0.0 if past else by_hand(members), rel=1e-4, abs=1e-6)


def test_equal_answers_and_shared_prompts_do_not_disagree():
    alike = Disagreement().compute(forest_of([("a", (5, 6, 7), {})] * 3), {}, TOOLS)["disagreement"]
    assert alike.tolist() == [0.0] * 9
    other = Disagreement().compute(forest_of([("a", (5, 6), {}), ("a", (7, 6), {})]), {}, TOOLS)["disagreement"]
    assert other[[0, 2]].tolist() == [0.0, 0.0] and float(other[1]) == float(other[3]) > 1e-3


def test_positions_count_trained_tokens():
    forest = forest_of([("a", (5, 6, 7), {"trainable": [False, True, True]}), ("a", (5, 6), {})])
    assert positions(forest).tolist() == [0, 0, 1, 0, 1]


def test_order_does_not_matter_and_nothing_gives_nothing():
    forest = forest_of(ROWS)
    order = torch.tensor([6, 0, 4, 2, 5, 1, 3])
    actual = Disagreement().compute(forest, {}, TOOLS)["disagreement"]
    again = Disagreement().compute(forest.select(order), {}, TOOLS)["disagreement"]
    assert torch.allclose(again, actual[forest.entries_of(order)], rtol=1e-5, atol=1e-6)
    assert Disagreement().compute(Forest.from_records([]), {}, TOOLS)["disagreement"].shape == (0,)
    nobody = forest_of([("a", (5, 6), {"compared": False})])
    assert Disagreement().compute(nobody, {}, TOOLS)["disagreement"].tolist() == [0.0, 0.0]


def test_what_can_not_be_read_is_refused():
    bare = {"schema": "gxpo.rollouts/1", "group": "g", "id": "t", "prompt": [], "reward": 1.0}
    forest = Forest.from_records([bare | {"turns": [{"action": [3, 4], "logprob": [-1.0, -1.0]}]}])
    with pytest.raises(ModelError, match="give it a prompt"):
        Disagreement().compute(forest, {}, TOOLS)
    with pytest.raises(ConfigError, match="logits_at_once"):
        Disagreement(logits_at_once=0)


MeanHidden = kind_of(mean_hidden)

MEAN_LEARNER = TorchLearner(clean_llama(), lr=0.0)


def computed(forest: Forest, **settings_: Any) -> torch.Tensor:
    tools: Any = SimpleNamespace(learner=MEAN_LEARNER)
    return MeanHidden(**settings_).compute(forest, {}, tools)["embedding"]


@settings(max_examples=10)
@given(st.integers(0, 10**6))
def test_it_is_the_mean_over_each_trajectorys_actions(seed):
    forest = random_forest(seed)
    hidden, actual = MEAN_LEARNER.hidden(forest).double(), computed(forest)
    assert actual.shape == (forest.n_trajectories, 32) and actual.dtype == torch.float64
    for r in range(forest.n_trajectories):
        tokens = forest.path_token[forest.path_of(r)].tolist()
        mean = sum((hidden[t] for t in tokens), torch.zeros(32, dtype=torch.float64)) / max(len(tokens), 1)
        assert torch.allclose(actual[r], mean, atol=1e-12)


def test_it_does_not_depend_on_how_trajectories_are_stored():
    forest = random_forest(7)
    assert torch.allclose(computed(forest.flatten()), computed(forest), atol=1e-6)  # the learner gives float32
    assert not torch.allclose(computed(forest, layer=1), computed(forest), atol=1e-2)


def test_chunks_change_nothing(monkeypatch):
    forest = random_forest(3)
    hidden = torch.randn(forest.n_tokens, 5, generator=torch.Generator().manual_seed(0))
    full_mean_hidden = mean_hidden(forest, hidden)
    monkeypatch.setattr(module, "CHUNK", 2)
    assert torch.allclose(mean_hidden(forest, hidden), full_mean_hidden, atol=1e-14)
    assert mean_hidden(Forest.from_records([]), torch.zeros(0, 5)).shape == (0, 5)


StateNorm = kind_of(state_norm)

NORM_LEARNER = TorchLearner(clean_llama(), lr=0.0)
NORM_TOOLS = SimpleNamespace(learner=NORM_LEARNER, decode=str, blank_id=0, step=1, seed=0)


def record(name, turns, **fields):
    return {"schema": "gxpo.rollouts/1", "group": "g", "id": name, "reward": 1.0, "turns": turns, **fields}


def norms_said(ids):
    """|h|_1 after each token, h what the head reads, by the model itself."""
    with torch.no_grad():
        actual = NORM_LEARNER.model.model(torch.tensor([ids])).last_hidden_state[0]
    return actual.double().abs().sum(1).tolist()


def test_worked() -> None:
    hidden = torch.tensor([[1.0, -2.0], [0.5, 0.0], [-3.0, -4.0]])
    assert norm_before(hidden, torch.tensor([-1, 0, 2, 1])).tolist() == [0.0, 3.0, 7.0, 0.5]


def test_it_is_of_the_token_before_over_turns_and_forks() -> None:
    forest = Forest.from_records(
        [
            record(
                "t0",
                [{"action": [5, 6, 7], "logprob": [-1.0] * 3}, {"observation": [8], "action": [9, 10]}],
                prompt=[1, 2],
            ),
            record("t1", [{"action": [11], "logprob": [-1.0]}], fork={"of": "t0", "turn": 0, "token": 2}),
        ]
    )
    actual = StateNorm().compute(forest, {}, NORM_TOOLS)["state_norm"]
    first, second = norms_said([1, 2, 5, 6, 7, 8, 9]), norms_said([1, 2, 5, 6])
    expected = [*first[1:4], *first[5:7], *second[1:4]]
    assert actual.dtype == torch.float64 and actual.tolist() == pytest.approx(expected, rel=1e-5)
    assert StateNorm().compute(forest.flatten(), {}, NORM_TOOLS)["state_norm"].tolist() == pytest.approx(
        expected, rel=1e-5
    )


def test_a_token_that_nothing_predicts() -> None:
    turn = {"action": [5, 6], "logprob": [-1.0] * 2}
    with pytest.raises(ModelError, match="give it a prompt"):
        StateNorm().compute(Forest.from_records([record("t", [turn])]), {}, NORM_TOOLS)
