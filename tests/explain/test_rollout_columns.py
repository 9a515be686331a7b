"""Columns of a page as its script reads them."""

from __future__ import annotations

import math

import numpy as np
import torch
from tests.explain.rollout_pages import many, numbers

from gxpo.explain.rollout_columns import _tokens, observations, packed, packed_tokens
from gxpo.forest.forest import Forest


def test_columns_are_packed_on_the_coarsest_axis() -> None:
    forest = many(2, 2).forest
    assert packed_tokens(forest, torch.tensor([1.0, 1, 2, 2, 3, 3, 4, 4]))["a"] == "R"
    assert packed_tokens(forest, torch.arange(8.0))["a"] == "P"
    assert packed(np.array([7, 7])) == {"c": 7} and packed(np.array([math.nan, math.nan]))["k"] == "f8"
    few = packed(np.array([0.5, math.nan, 0.5, 0.5, math.nan, 0.5, 0.5, 0.5]))
    assert few["k"] == "u1" and str(numbers(few, 8)[:3]) == "[0.5, nan, 0.5]"
    assert packed(np.array([1, 300]))["k"] == "u2" and packed(np.array([-1, 3]))["k"] == "i1"


def test_the_step_in_which_a_token_was_unmasked_is_on_the_page() -> None:
    forest = many(2, 2).forest
    words = np.zeros(forest.n_tokens, dtype=np.int64)
    assert _tokens(forest, words)["unmasked"] is None
    steps = torch.arange(forest.n_tokens)
    assert _tokens(forest.replace(extras={"unmasked_at": steps}), words)["unmasked"]["k"] == "u1"


def test_a_turn_that_begins_from_the_prompt_again_shows_it() -> None:
    turns = [{"action": [3]}, {"context": [1, 2], "action": [4]}, {"observation": [5], "action": [3]}]
    record = {"schema": "gxpo.rollouts/1", "group": "g", "id": "g/0", "prompt": [1, 2], "turns": turns, "reward": 1.0}
    forest = Forest.from_records([record])
    words = ["", "a", "b", "c", "d", "e"]
    assert observations(forest, words, forest.token.numpy()) == [None, "ab", "e"]
