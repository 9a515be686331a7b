from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.naive import view

from gxpo.forest.forest import Forest

tokens = st.lists(st.integers(0, 30), max_size=4)
few = settings(max_examples=30, deadline=None)


# ---------------------------------------------------------------- from_completions
@few
@given(st.lists(st.tuples(tokens, st.lists(tokens, max_size=3)), max_size=4), st.booleans())
def test_completions_are_the_same_forest_as_their_records(groups: list, known: bool) -> None:
    prompts, completions = [p for p, _ in groups], [c for _, c in groups]
    rows = [(g, p, c) for g, (p, cs) in enumerate(groups) for c in cs]
    rewards = [None if i % 4 == 3 else float(i) for i in range(len(rows))]
    logprobs = [[[-t / 8 for t in c] for c in cs] for cs in completions] if known else None
    built = Forest.from_completions(prompts, completions, rewards, logprobs=logprobs)
    records = [
        {
            **{"schema": "gxpo.rollouts/1", "group": str(g), "id": f"t{i}", "prompt": p, "reward": rewards[i]},
            "turns": [{"action": c, "logprob": [-t / 8 for t in c] if known else None}],
        }
        for i, (g, p, c) in enumerate(rows)
    ]
    parsed = Forest.from_records(records)
    assert view(built) == view(parsed)
    assert built.n_tokens <= sum(len(p) for p in prompts) + sum(len(c) for _, _, c in rows)
    assert Forest.from_records(built.to_records()).n_tokens == parsed.n_tokens
    assert built.pack().position.shape == built.token.shape


def test_groups_are_named_and_equal_prompts_do_not_merge_them() -> None:
    f = Forest.from_completions(
        [[1], [1], [1]], [[[2], [3]], [[4]], [[5]]], groups=["a", "b", "a"], tasks=["x", "x", "y"]
    )
    assert f.group == ["a", "a", "b", "a"] and f.task == ["x", "x", "x", "y"]
    assert f.ids("group").tolist() == [0, 0, 1, 0]  # ragged: by name, never by position
    assert f.n_tokens == 1 + 4  # the prompt is stored once


def test_flat_and_nested_columns_are_the_same() -> None:
    flat = Forest.from_completions([[1], [2]], [[[3], [4]], [[5]]], [1.0, None, 0.0], success=torch.tensor([1.0, 0, 0]))
    nested = Forest.from_completions([[1], [2]], [[[3], [4]], [[5]]], [[1.0, None], [0.0]], success=[[1, 0], [0]])
    assert view(flat) == view(nested)
    assert flat.scored.tolist() == [True, False, True]


def test_columns_ride_along() -> None:
    support = [torch.tensor([[3, 9], [4, -1]]), None]
    f = Forest.from_completions(
        [[1]], [[[3, 4], [5]]], [1.0, 0.0], logprobs=[[[-1.0, None], [-2.0]]], support=support, truncated=[False, True],
        finish=["stop", "length"], sampling={"temperature": 0.7}, policy_version=3, origin="replay", ids=["p", "q"],
        info=[{"k": 1}, {}],
    )  # fmt: skip
    assert f.extras["support"].tolist() == [[-1, -1], [3, 9], [4, -1], [-1, -1]]
    assert f.behaviour_logprob.nan_to_num(7).tolist() == [7, -1, 7, -2]
    assert (f.id, f.origin, f.step_finish) == (["p", "q"], ["replay"] * 2, ["stop", "length"])
    assert f.truncated.tolist() == [False, True] and f.sampling == [{"temperature": 0.7}] * 2
    assert f.policy_version.tolist() == [-1, 3, 3] and f.info == [{"k": 1}, {}]
    assert view(Forest.from_records(f.to_records())) == view(f)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"completions": [[[1]]]}, "2 prompts and 1 groups"),
        ({"rewards": [1.0]}, "rewards has 1 values; there are 3"),
        ({"rewards": [[1.0], [0.0, 0.0]]}, "rewards must be nested as the completions are"),
        ({"groups": ["a"]}, "groups has 1 names for 2 prompts"),
        ({"tasks": ["a"]}, "tasks has 1 names for 2 prompts"),
        ({"logprobs": [[[-1.0], [-1.0]], [[-1.0, -1.0]]]}, "one value for each token"),
        ({"logprobs": [[[-1.0, -1.0], []], [[-1.0]]]}, "one value for each token"),
        ({"ids": ["a", "a", "b"]}, "3 distinct names"),
        ({"finish": ["stop"]}, "step_finish has 1 rows"),
        ({"info": [{}]}, "info has 1 rows"),
        ({"support": [None, torch.zeros(2, 1, dtype=torch.int64), None]}, "support must have one row"),
    ],
)
def test_lengths_that_differ_are_refused(change: dict, message: str) -> None:
    given_ = {"prompts": [[1], [2]], "completions": [[[3], [4]], [[5]]], **change}
    with pytest.raises(ValueError, match=message):
        Forest.from_completions(**given_)


def test_no_completions() -> None:
    assert Forest.from_completions([], []).n_trajectories == 0
    f = Forest.from_completions([[1], []], [[], [[]]], [0.5])
    assert (f.n_trajectories, f.n_entries) == (1, 0)
    assert f.pack().position.tolist() == [0] and f.returns(0.9).tolist() == [0.5]
