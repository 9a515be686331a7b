"""Forests from padded tensors: sides of the padding, gaps, groups, verdicts, shapes."""

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


# ---------------------------------------------------------------- from_padded
def pad(rows: list, left: int, right: int, width: int, at: int) -> dict:
    """Rows of (prompt, [(tokens, own)...]) as TRL holds them: prompts end at column `at`, completions begin there."""
    ids, completion_mask, real, logprob = (torch.full((len(rows), left + width + right), x) for x in (0, 0, 0, NAN))
    for b, (prompt, runs) in enumerate(rows):
        column = left + at - len(prompt)
        for run, mine in [(prompt, False), *runs]:
            end = column + len(run)
            ids[b, column:end] = torch.tensor(run, dtype=torch.int64)
            completion_mask[b, column:end], real[b, column:end] = int(mine), 1
            if mine:
                logprob[b, column:end] = -torch.tensor(run, dtype=torch.float32) / 8
            column = end
    return {
        "input_ids": ids, "completion_mask": completion_mask[:, left + at :], "attention_mask": real,
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
