"""Rollouts of TRL's tables: groups of blocks, evaluations, reward columns and their weights."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gxpo.doctor.rollout_files import rollouts


def table(path, step, prompts, rewards, advantage, **other):
    n = len(prompts)
    columns = {"step": [step] * n, "prompt": prompts, "completion": [f"c{step}.{i}" for i in range(n)]}
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns | rewards | other | {"advantage": advantage}), path)


def trl(tmp_path, step, prompts, scores, advantage, **other):
    table(tmp_path / f"completions/completions_{step:05d}.parquet", step, prompts, {"f": scores}, advantage, **other)


def read(tmp_path, **hints):
    return rollouts(sorted(p for p in tmp_path.rglob("*") if p.is_file()), tmp_path, **hints)


def groups(sample):
    return [np.flatnonzero(sample.group == g).tolist() for g in range(sample.group.max() + 1)]


def test_blocks_of_equal_prompts_are_groups(tmp_path):
    trl(tmp_path, 1, ["a", "a", "b", "b"], [1.0, 0.0, 0.0, 0.0], [0.7, -0.7, 0.0, 0.0])
    trl(tmp_path, 2, ["c", "c", "d", "d"], [1.0, 1.0, 0.0, 1.0], [0.0, 0.0, -0.7, 0.7], answer=["5", "5", "6", "6"])
    sample, files_read, notes = read(tmp_path)
    assert groups(sample) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert sample.step.tolist() == [1] * 4 + [2] * 4
    assert sample.score.tolist() == sample.components["f"].tolist() == [1, 0, 0, 0, 1, 1, 0, 1]
    assert sample.advantage.tolist() == [0.7, -0.7, 0, 0, 0, 0, -0.7, 0.7]
    assert sample.reference == [None] * 4 + ["5", "5", "6", "6"]
    assert sample.where[5] == "completions/completions_00002.parquet:1"
    assert (sample.grouped_by, sample.total, len(files_read), notes, sample.held_out.any()) == (
        "blocks",
        8,
        2,
        [],
        False,
    )


def test_neighbouring_groups_of_one_prompt_differ_by_advantages(tmp_path):
    up, down = [0.7, -0.7], [-0.7, 0.7]
    for step in (1, 2):
        trl(tmp_path, step, ["a"] * 8, [1.0, 0.0, 0.0, 1.0] * 2, [*up, *down, *up, *down])
    assert {len(g) for g in groups(read(tmp_path)[0])} == {2}
    assert {len(g) for g in groups(read(tmp_path, group_size=4)[0])} == {4}


def test_neighbouring_groups_in_one_step_only(tmp_path):
    trl(tmp_path, 1, ["a"] * 4, [1.0] * 4, [0.0] * 4)
    for step in (2, 3):
        trl(tmp_path, step, ["a", "a", "b", "b"], [1.0] * 4, [0.0] * 4)
    assert {len(g) for g in groups(read(tmp_path)[0])} == {2}


def evaluated_run(tmp_path, at):
    """Groups of 4; the evaluation has the prompts x, y with two rows each at the end of the tables in `at`."""
    for step in range(1, 9):
        last = ["x", "x", "y", "y"] if step in at else [f"q{step}"] * 4
        trl(tmp_path, step, [f"p{step}"] * 4 + last, [1.0, 1.0, 0.0, 0.0] * 2, [0.9, 0.9, -0.9, -0.9] * 2)


@pytest.mark.parametrize("hint", [None, [4, 8]])
def test_rows_of_an_evaluation_are_held_out(tmp_path, hint):
    evaluated_run(tmp_path, (4, 8))
    sample, _, _ = read(tmp_path, evaluated=hint)
    assert [sample.prompt[i] for i in np.flatnonzero(sample.held_out)] == ["x", "x", "y", "y"] * 2
    assert set(sample.step[sample.held_out].tolist()) == {4, 8}
    assert sorted(len(g) for g in groups(sample)) == [2] * 4 + [4] * 14


def test_an_evaluation_pushes_out_the_beginning_of_a_group(tmp_path):
    evaluated_run(tmp_path, (8,))
    trl(tmp_path, 4, ["p4"] * 3 + ["q4"] * 4 + ["x"], [1.0] * 8, [0.0] * 8)
    trl(tmp_path, 8, ["p8"] * 3 + ["q8"] * 4 + ["x"], [1.0] * 8, [0.0] * 8)
    sample, _, notes = read(tmp_path)
    assert [sample.prompt[i] for i in np.flatnonzero(sample.held_out)] == ["x", "x"]
    assert "p4" not in sample.prompt
    assert notes[0] == "6 rows of groups that an evaluation cut were left out"


def test_an_evaluation_before_the_first_step_is_held_out(tmp_path):
    trl(tmp_path, 0, ["x", "y"], [1.0, 0.0], [0.0, 0.0])
    for step in (1, 2):
        trl(tmp_path, step, ["a", "a", "b", "b"], [1.0, 0.0] * 2, [0.7, -0.7] * 2)
    sample, _, _ = read(tmp_path)
    assert sample.held_out.tolist() == [True] * 2 + [False] * 8
    assert groups(sample)[:2] == [[0], [1]]


def test_a_data_set_of_one_prompt_has_no_evaluation(tmp_path):
    for step in range(1, 7):
        trl(tmp_path, step, ["a"] * 4, [1.0, 0.0] * 2, [0.7, -0.7] * 2)
    assert not read(tmp_path)[0].held_out.any()


def test_tables_without_new_rollouts_are_left_out(tmp_path):
    trl(tmp_path, 1, ["a", "a"], [1.0, 0.0], [0.7, -0.7])
    path = tmp_path / "completions/completions_00002.parquet"
    path.write_bytes((tmp_path / "completions/completions_00001.parquet").read_bytes())
    sample, _, notes = read(tmp_path)
    assert len(sample) == 2
    assert notes == ["1 tables hold the rollouts of the table before them and were left out"]


def test_messages_tool_calls_and_parts_become_text(tmp_path):
    prompts = [[{"role": "system", "content": "S"}, {"role": "user", "content": "Q"}]] * 2
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "add", "arguments": "1, 2"}}]}
    done = {"role": "assistant", "content": "3", "tool_calls": None}
    table = {"step": [1, 1], "prompt": prompts, "completion": [[call, {"role": "tool", "content": "3"}, done], [done]]}
    pq.write_table(pa.table(table | {"f": [1.0, 0.0], "advantage": [0.7, -0.7]}), tmp_path / "c.bin")
    sample, _, _ = read(tmp_path)
    assert sample.prompt == ["system: S\n\nuser: Q"] * 2
    assert sample.completion == ["add(1, 2)\n\n3", "3"]


def test_missing_rewards_do_not_count_as_zero(tmp_path):
    nan = float("nan")
    path = tmp_path / "completions_00001.parquet"
    rewards = {"f": [1.0, nan, nan, 0.0], "g": [0.5, 0.5, nan, 0.5]}
    table(path, 1, ["a"] * 2 + ["b"] * 2, rewards, [0.7, -0.7, 0.0, 0.0])
    sample, _, _ = read(tmp_path)
    assert np.array_equal(sample.score, [1.5, 0.5, nan, 0.5], equal_nan=True)
    sample, _, _ = read(tmp_path, reward_weights=[2.0, 1.0])
    assert np.array_equal(sample.score, [2.5, 0.5, nan, 0.5], equal_nan=True)


def test_a_logged_number_is_not_a_reward_function(tmp_path):
    path = tmp_path / "completions_00001.parquet"
    rewards = {"f": [1.0, 0.0, 0.0, 1.0], "length": [3.0, 9.0, 5.0, 8.0]}
    table(path, 1, ["a"] * 2 + ["b"] * 2, rewards, [0.7, -0.7, -0.7, 0.7])
    sample, _, notes = read(tmp_path)
    assert list(sample.components) == ["f"] and sample.score.tolist() == [1, 0, 0, 1]
    assert notes == ["not taken for reward functions, as they are no part of the advantages: length"]
    sample, _, _ = read(tmp_path, components=["f", "length"])
    assert list(sample.components) == ["f", "length"]


def test_weights_are_read_from_the_advantages(tmp_path):
    f = np.array([1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0])
    g = np.array([0.0, 1.0, 1.0, 0.0, 0.5, 0.0, 0.2, 1.0])
    summed = (f + 0.25 * g).reshape(2, 4)
    advantage = (summed - summed.mean(1, keepdims=True)) / (summed.std(1, ddof=1, keepdims=True) + 1e-4)
    path = tmp_path / "completions_00001.parquet"
    table(path, 1, ["a"] * 4 + ["b"] * 4, {"f": f.tolist(), "g": g.tolist()}, advantage.ravel().tolist())
    sample, _, notes = read(tmp_path)
    assert np.allclose(sample.score, [1.0, 0.25, 1.25, 0.0, 0.125, 1.0, 1.05, 0.25], atol=1e-3)
    assert notes == ["the advantages are those of rewards weighted f 1, g 0.25"]


def test_known_evaluations_are_in_the_sample(tmp_path):
    for step in range(1, 201):
        prompts = ["x"] * 4 if step in (77, 111) else [f"p{step}"] * 4
        trl(tmp_path, step, prompts, [1.0, 1.0, 0.0, 0.0], [0.9, 0.9, -0.9, -0.9])
    sample, _, notes = read(tmp_path, evaluated=[77, 111], keep=300)
    assert set(sample.step[sample.held_out].tolist()) == {77, 111}
    assert (sample.step.min(), sample.step.max()) == (1, 200) and len(sample) <= 300
    assert notes == [f"a sample of {len(sample)} of about 800 rollouts was read"]
