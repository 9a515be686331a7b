"""Writing records: forks, what a fork inherits, and what only a fork can express."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.forest.record_rows import few, fewer, fork, record
from tests.naive import view
from tests.strategies import RICH, forests, random_forest

from gxpo.base.errors import RecordError
from gxpo.forest.forest import Forest


def plain(x: Any) -> Any:
    """Records with tensors as lists, so that == compares them."""
    if isinstance(x, torch.Tensor):
        return ["nan" if v != v else v for v in x.flatten().tolist()]
    if isinstance(x, dict):
        return {k: plain(v) for k, v in x.items()}
    return [plain(v) for v in x] if isinstance(x, list) else x


@few
@given(forests(**RICH))
def test_records_written_by_gxpo_survive_a_round_trip(forest: Forest) -> None:
    records = forest.to_records()
    again = Forest.from_records(records)
    assert plain(again.to_records()) == plain(records)
    assert view(again) == view(forest)
    assert again.n_tokens <= forest.n_tokens  # and all sharing is still there


@fewer
@given(st.integers(0, 2**32 - 1))
def test_a_forked_file_and_the_same_written_out_in_full(seed: int) -> None:
    forest = random_forest(seed, mixed_turns=False)
    full = forest.to_records(share=False)
    assert not any("fork" in r for r in full)
    assert view(Forest.from_records(full)) == view(Forest.from_records(full, share=False)) == view(forest)
    assert plain(Forest.from_records(full).to_records()) == plain(full)


@fewer
@given(st.integers(0, 2**32 - 1), st.randoms(use_true_random=False))
def test_a_fork_without_its_base_is_written_in_full(seed: int, rng: random.Random) -> None:
    forest = random_forest(seed, mixed_turns=False, extras=True, media=True)
    chosen = forest.select([r for r in range(forest.n_trajectories) if rng.random() < 0.5])
    assert view(Forest.from_records(chosen.to_records())) == view(chosen)


# ---------------------------------------------------------------- what can't be written
def test_what_only_a_fork_can_say_is_not_written_in_full() -> None:
    f = Forest.from_records([record("a"), fork("a", 0, 1, [{"action": [4], "policy": "other"}])])
    assert Forest.from_records(f.to_records()).to_records() == f.to_records()
    with pytest.raises(RecordError, match="'f', turn 0: `policy` changes inside its action"):
        f.to_records(share=False)
    assert view(f.flatten()) == view(f)  # a forest can hold it


def test_changed_step_rewards_are_written_out_in_a_fork() -> None:
    turns = [{"action": [1], "reward": 1.0}, {"action": [2]}]
    f = Forest.from_records([record("a", turns), fork("a", 0, None, [{"action": [3]}])])
    g = f.replace(step_reward=torch.tensor([1.0, 0.0, 7.0, 0.0], dtype=torch.float64))
    assert view(Forest.from_records(g.to_records())) == view(g)


@pytest.mark.parametrize("name", ["step_finish", "step_info", "action_text", "observation_text", "prompt_text"])
@fewer
@given(forest=forests(mixed_turns=False), data=st.data())
def test_changed_values_are_written_out_in_a_fork(name: str, forest: Forest, data: st.DataObject) -> None:
    values = st.sampled_from([{}, {"k": 1}] if name == "step_info" else [None, "stop", "length"])
    rows = len(getattr(forest, name))
    changed = forest.replace(**{name: data.draw(st.lists(values, min_size=rows, max_size=rows))})
    assert view(Forest.from_records(changed.to_records())) == view(changed)
