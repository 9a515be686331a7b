"""The size of the state in which a token is chosen: by the model's own hidden states, packed and written out."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from tests.learning.llamas import clean_llama

from gxpo.algorithms.signals.hidden_states import norm_before, state_norm
from gxpo.base.errors import ModelError
from gxpo.forest.forest import Forest
from gxpo.learning.torch import TorchLearner
from gxpo.parts.definition import kind_of

StateNorm = kind_of(state_norm)

LEARNER = TorchLearner(clean_llama(), lr=0.0)
TOOLS = SimpleNamespace(learner=LEARNER, decode=str, blank_id=0, step=1, seed=0)


def record(name, turns, **fields):
    return {"schema": "gxpo.rollouts/1", "group": "g", "id": name, "reward": 1.0, "turns": turns, **fields}


def said(ids):
    """|h|_1 after each token, h what the head reads, by the model itself."""
    with torch.no_grad():
        found = LEARNER.model.model(torch.tensor([ids])).last_hidden_state[0]
    return found.double().abs().sum(1).tolist()


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
    found = StateNorm().compute(forest, {}, TOOLS)["state_norm"]
    first, second = said([1, 2, 5, 6, 7, 8, 9]), said([1, 2, 5, 6])
    wanted = [*first[1:4], *first[5:7], *second[1:4]]
    assert found.dtype == torch.float64 and found.tolist() == pytest.approx(wanted, rel=1e-5)
    assert StateNorm().compute(forest.flatten(), {}, TOOLS)["state_norm"].tolist() == pytest.approx(wanted, rel=1e-5)


def test_a_token_that_nothing_predicts() -> None:
    turn = {"action": [5, 6], "logprob": [-1.0] * 2}
    with pytest.raises(ModelError, match="give it a prompt"):
        StateNorm().compute(Forest.from_records([record("t", [turn])]), {}, TOOLS)
