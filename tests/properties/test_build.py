from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.naive import view

from gxpo.forest.forest import Forest

tokens = st.lists(st.integers(0, 30), max_size=4)
few = settings(max_examples=30, deadline=None)
NAN = float("nan")


def steps(forest: Forest) -> list:
    """(context, tokens, log-probs) of each step of each trajectory."""
    return [
        [(s["context"], [t["token"] for t in s["tokens"]], [t["logprob"] for t in s["tokens"]]) for s in t["steps"]]
        for t in view(forest)
    ]


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
        ({"rewards": [[1.0], [0.0, 0.0]]}, "rewards is nested otherwise"),
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


# ---------------------------------------------------------------- from_padded
def pad(rows: list, left: int, right: int, width: int, at: int) -> dict:
    """Rows of (prompt, [(tokens, own)...]) as TRL holds them: prompts end at column `at`, completions begin there."""
    ids, own, real, logprob = (torch.full((len(rows), left + width + right), x) for x in (0, 0, 0, NAN))
    for b, (prompt, runs) in enumerate(rows):
        column = left + at - len(prompt)
        for run, mine in [(prompt, False), *runs]:
            end = column + len(run)
            ids[b, column:end] = torch.tensor(run, dtype=torch.int64)
            own[b, column:end], real[b, column:end] = int(mine), 1
            if mine:
                logprob[b, column:end] = -torch.tensor(run, dtype=torch.float32) / 8
            column = end
    return {
        "input_ids": ids, "completion_mask": own[:, left + at :], "attention_mask": real,
        "logprobs": logprob[:, left + at :],
    }  # fmt: skip


run = st.lists(st.integers(1, 30), min_size=1, max_size=3)
padded_row = st.tuples(run, st.lists(run, max_size=4)).map(
    lambda x: (x[0], [(tokens, i % 2 == 0) for i, tokens in enumerate(x[1])])
)


@few
@given(st.lists(padded_row, min_size=1, max_size=4), st.integers(0, 3), st.integers(0, 3))
def test_padding_on_either_side_changes_nothing(rows: list, left: int, right: int) -> None:
    """T17, T31; and gaps in the completion mask are observations that open a new turn."""
    rewards, group = torch.rand(len(rows), dtype=torch.float64), [i % 2 for i in range(len(rows))]
    expected = []
    for prompt, runs in rows:
        context, turns = list(prompt), []
        for tokens, mine in runs:
            if mine:
                turns.append((list(context), tokens, [-t / 8 for t in tokens]))
            context += tokens
        expected.append(turns or [(context, [], [])])
    built = Forest.from_padded(rewards=rewards, group=group, **pad(rows, left, right, width=16, at=3))
    assert steps(built) == expected
    after = [runs[-1][0] if runs and not runs[-1][1] else [] for _, runs in rows]
    assert built.final_observation == after
    assert built.outcome.tolist() == rewards.tolist() and built.group == [str(g) for g in group]
    assert built.n_tokens <= Forest.from_padded(rewards=rewards, group=group, **pad(rows, 0, 0, 16, 3)).n_tokens


def test_without_an_attention_mask_right_padding_is_dropped() -> None:
    ids = torch.tensor([[7, 8, 1, 2, 0, 0], [7, 8, 1, 9, 3, 0], [7, 8, 0, 0, 0, 0]])
    mask = torch.tensor([[1, 1, 0, 0], [1, 0, 1, 0], [0, 0, 0, 0]])
    f = Forest.from_padded(ids, mask, torch.tensor([1.0, NAN, 0.0]), ["a", "a", "b"])
    assert steps(f) == [
        [([7, 8], [1, 2], [None, None])],
        [([7, 8], [1], [None]), ([7, 8, 1, 9], [3], [None])],
        [([7, 8], [], [])],
    ]
    assert f.scored.tolist() == [True, False, True] and f.success.isnan().all()
    wide = torch.nn.functional.pad
    same = Forest.from_padded(wide(ids, (0, 3)), wide(mask, (0, 3)), torch.tensor([1.0, NAN, 0.0]), ["a", "a", "b"])
    assert view(same) == view(f)


def test_groups_are_never_inferred_from_position() -> None:
    """T6: groups of sizes 2 and 3, interleaved; ids are opaque."""
    ids, mask = torch.arange(10).reshape(5, 2), torch.ones(5, 1)
    f = Forest.from_padded(ids, mask, torch.zeros(5), torch.tensor([7, 3, 7, 3, 3]))
    assert f.group == ["7", "3", "7", "3", "3"] and f.ids("group").tolist() == [0, 1, 0, 1, 1]
    alike = Forest.from_padded(torch.zeros(2, 2, dtype=torch.int64), mask[:2], torch.zeros(2), ["a", "b"])
    assert alike.ids("group").tolist() == [0, 1]  # T15: equal prompts, two groups


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"completion_mask": torch.ones(2, 4)}, "completion_mask"),
        ({"completion_mask": torch.ones(1, 2)}, "completion_mask"),
        ({"logprobs": torch.zeros(2)}, "logprobs"),
        ({"attention_mask": torch.ones(2, 2)}, "attention_mask"),
        ({"rewards": torch.zeros(3)}, "group, rewards and success need one value for each of the 2 rows"),
        ({"group": ["a"]}, "group, rewards and success"),
        ({"success": [1.0]}, "group, rewards and success"),
    ],
)
def test_shapes_that_differ_are_refused(change: dict, message: str) -> None:
    given_ = {
        "input_ids": torch.ones(2, 3, dtype=torch.int64), "completion_mask": torch.ones(2, 2),
        "rewards": torch.zeros(2), "group": ["a", "b"], **change,
    }  # fmt: skip
    with pytest.raises(ValueError, match=message):
        Forest.from_padded(**given_)


def test_no_rows() -> None:
    none = torch.zeros(0, 3, dtype=torch.int64)
    assert Forest.from_padded(none, none, torch.zeros(0), []).n_trajectories == 0


def test_verdicts_of_padded_rows() -> None:
    ids, mask = torch.tensor([[1, 2, 3]] * 3), torch.ones(3, 2)
    for success in ([True, None, False], torch.tensor([1.0, NAN, 0.0])):
        built = Forest.from_padded(ids, mask, torch.tensor([0.3, 0.2, 0.1]), [0, 0, 0], success=success)
        assert built.success[[0, 2]].tolist() == [1.0, 0.0] and bool(built.success[1].isnan())
    assert bool(Forest.from_padded(ids, mask, torch.zeros(3), [0, 0, 0]).success.isnan().all())
