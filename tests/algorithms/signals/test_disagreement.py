"""TW-GRPO's statistic: the loop over the vocabulary, chunks, answers that have ended, the model's own distributions."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.learning.llamas import clean_llama

from gxpo.algorithms.signals.hidden_states import disagreement, divergence, positions
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
    found = divergence(
        torch.tensor([lp for _, lp in rows], dtype=torch.float64),
        torch.tensor([c for c, _ in rows]),
        torch.tensor(sizes, dtype=torch.float64),
    )
    for k in range(3):
        own = [lp for c, lp in rows if c == k]
        members = own + [[-math.log(3)] * 3] * (sizes[k] - len(own))
        assert float(found[k]) == pytest.approx(by_hand(members), rel=1e-9, abs=1e-9)


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
    found = Disagreement(logits_at_once=at_once).compute(forest, {}, TOOLS)["disagreement"]
    uniform = [-math.log(23)] * 23
    answers = {"a": [ROWS[0], ROWS[1]], "b": [ROWS[4], ROWS[6]]}
    for r, (g, action, fields) in enumerate(ROWS):
        trained = fields.get("trainable", [True] * len(action))
        got = found[forest.path_of(r)].tolist()
        assert [x for x, t in zip(got, trained, strict=True) if not t] == [0.0] * trained.count(False)
        for place, x in enumerate(x for x, t in zip(got, trained, strict=True) if t):
            members = []
            for _, other, own in answers[g]:
                after = said([1, 2, *other], own.get("sampling", {}).get("temperature", 1.0))
                kept = [i for i, t in enumerate(own.get("trainable", [True] * len(other))) if t]
                members.append(after[1 + kept[place]] if place < len(kept) else uniform)
            past = all(m is uniform for m in members)
            assert x == pytest.approx(0.0 if past else by_hand(members), rel=1e-4, abs=1e-6)


def test_answers_that_are_alike_disagree_nowhere_and_nor_does_a_shared_prompt():
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
    found = Disagreement().compute(forest, {}, TOOLS)["disagreement"]
    again = Disagreement().compute(forest.select(order), {}, TOOLS)["disagreement"]
    assert torch.allclose(again, found[forest.entries_of(order)], rtol=1e-5, atol=1e-6)
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
