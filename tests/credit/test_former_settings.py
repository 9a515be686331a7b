"""Saved configurations of the release before, which state every option of a part: the same advantages."""

from __future__ import annotations

import pytest
import torch
from tests.battery import battery, made_up

import gxpo

SCALED = {"credit.center": "mean", "credit.scale": "std", "credit.ddof": 1, "credit.eps": 1e-6}
STATES = {
    "credit.step_weight": 1.0, "credit.history": 0, "credit.unit": "trajectory", "credit.single": "zero",
    "credit.single_state": "zero", "credit.state": "id", "credit.similar": 1.0, **SCALED,
}  # fmt: skip
WHOLE = {"credit.quantile": 0.4, "credit.shift": 0.0, "credit.single": "zero", "credit.unit": "trajectory", **SCALED}
TURNS = {"credit": "turn_position", "credit.ddof": 1, "credit.single": "zero"}
SAVED = {
    "grpo": {"credit": "group_relative", **WHOLE},
    "gigpo": {"credit": "anchor_state", "credit.discount": 0.95, **STATES},
    "graph_gpo": {"credit": "graph_distance", "credit.discount": 0.1, "credit.form": "distance", "credit.worth": 10.0,
                  **STATES},
    "dr_mas": {"credit": "agent_relative", **WHOLE},
    "oprl": {"credit": "step_reward", "credit.step_weight": 1.0, **SCALED},
    "hrm": {"credit": "piece_reward", "credit.step_weight": 1.0, **SCALED},
    "tree_grpo": {"credit": "tree_relative", "credit.compare": "both", "credit.ddof": 1, "credit.eps": 1e-6},
    "remax": {"credit": "against_baseline"},
    "matchtir": {**TURNS, "credit.over": "rewards", "credit.discount": 0.9, "credit.whole_weight": 0.5,
                 "credit.turn_weight": 0.5, "credit.last": True, "credit.eps": 1e-6},
    "mt_grpo": {**TURNS, "credit.over": "outcome", "credit.discount": 0.0, "credit.whole_weight": 1.0,
                "credit.turn_weight": 1.0, "credit.last": False, "credit.eps": 1e-4},
    "prorag": {"credit": "group_relative", **WHOLE, "credit.eps": 1e-4,
               "credit.add.token_normalised": "token_normalised", "credit.add.token_normalised.weight": 0.5,
               "credit.add.token_normalised.ddof": 0, "credit.add.token_normalised.eps": 1e-8},
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SAVED)
def test_a_saved_configuration_gives_the_same_credit(name: str) -> None:
    old, new = gxpo.method(name, SAVED[name]), gxpo.method(name)
    for seed in range(3):
        forest = battery(seed)
        signals = made_up(new, forest, seed)
        assert torch.equal(old.credit(forest, signals, 0), new.credit(forest, signals, 0))
