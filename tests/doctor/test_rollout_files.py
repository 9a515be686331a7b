"""Single rollouts found in what trainers leave: groups, held-out rows, references, and damaged files."""

import json
import sys
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gxpo.doctor.rollout_files import rollouts
from gxpo.doctor.rollout_tables import read_lines


def table(path, step, prompts, rewards, advantage, **other):
    n = len(prompts)
    columns = {"step": [step] * n, "prompt": prompts, "completion": [f"c{step}.{i}" for i in range(n)]}
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns | rewards | other | {"advantage": advantage}), path)


def trl(tmp_path, step, prompts, scores, advantage, **other):
    table(tmp_path / f"completions/completions_{step:05d}.parquet", step, prompts, {"f": scores}, advantage, **other)


def read(tmp_path, **hints):
    return rollouts(sorted(p for p in tmp_path.rglob("*") if p.is_file()), tmp_path, **hints)


def groups(found):
    return [np.flatnonzero(found.group == g).tolist() for g in range(found.group.max() + 1)]


def test_blocks_of_equal_prompts_are_groups(tmp_path):
    trl(tmp_path, 1, ["a", "a", "b", "b"], [1.0, 0.0, 0.0, 0.0], [0.7, -0.7, 0.0, 0.0])
    trl(tmp_path, 2, ["c", "c", "d", "d"], [1.0, 1.0, 0.0, 1.0], [0.0, 0.0, -0.7, 0.7], answer=["5", "5", "6", "6"])
    found, took, notes = read(tmp_path)
    assert groups(found) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert found.step.tolist() == [1] * 4 + [2] * 4
    assert found.score.tolist() == found.components["f"].tolist() == [1, 0, 0, 0, 1, 1, 0, 1]
    assert found.advantage.tolist() == [0.7, -0.7, 0, 0, 0, 0, -0.7, 0.7]
    assert found.reference == [None] * 4 + ["5", "5", "6", "6"]
    assert found.where[5] == "completions/completions_00002.parquet:1"
    assert (found.grouped_by, found.of, len(took), notes, found.held_out.any()) == ("blocks", 8, 2, [], False)


def test_one_prompt_in_neighbouring_groups_is_told_apart_by_advantages(tmp_path):
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
    found, _, _ = read(tmp_path, evaluated=hint)
    assert [found.prompt[i] for i in np.flatnonzero(found.held_out)] == ["x", "x", "y", "y"] * 2
    assert set(found.step[found.held_out].tolist()) == {4, 8}
    assert sorted(len(g) for g in groups(found)) == [2] * 4 + [4] * 14


def test_an_evaluation_pushes_out_the_beginning_of_a_group(tmp_path):
    evaluated_run(tmp_path, (8,))
    trl(tmp_path, 4, ["p4"] * 3 + ["q4"] * 4 + ["x"], [1.0] * 8, [0.0] * 8)
    trl(tmp_path, 8, ["p8"] * 3 + ["q8"] * 4 + ["x"], [1.0] * 8, [0.0] * 8)
    found, _, notes = read(tmp_path)
    assert [found.prompt[i] for i in np.flatnonzero(found.held_out)] == ["x", "x"]
    assert "p4" not in found.prompt
    assert notes[0] == "6 rows of groups that an evaluation cut were left out"


def test_an_evaluation_before_the_first_step_is_held_out(tmp_path):
    trl(tmp_path, 0, ["x", "y"], [1.0, 0.0], [0.0, 0.0])
    for step in (1, 2):
        trl(tmp_path, step, ["a", "a", "b", "b"], [1.0, 0.0] * 2, [0.7, -0.7] * 2)
    found, _, _ = read(tmp_path)
    assert found.held_out.tolist() == [True] * 2 + [False] * 8
    assert groups(found)[:2] == [[0], [1]]


def test_a_data_set_of_one_prompt_has_no_evaluation(tmp_path):
    for step in range(1, 7):
        trl(tmp_path, step, ["a"] * 4, [1.0, 0.0] * 2, [0.7, -0.7] * 2)
    assert not read(tmp_path)[0].held_out.any()


def test_tables_without_new_rollouts_are_left_out(tmp_path):
    trl(tmp_path, 1, ["a", "a"], [1.0, 0.0], [0.7, -0.7])
    path = tmp_path / "completions/completions_00002.parquet"
    path.write_bytes((tmp_path / "completions/completions_00001.parquet").read_bytes())
    found, _, notes = read(tmp_path)
    assert len(found) == 2
    assert notes == ["1 tables hold the rollouts of the table before them and were left out"]


def test_messages_tool_calls_and_parts_become_text(tmp_path):
    prompts = [[{"role": "system", "content": "S"}, {"role": "user", "content": "Q"}]] * 2
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "add", "arguments": "1, 2"}}]}
    done = {"role": "assistant", "content": "3", "tool_calls": None}
    table = {"step": [1, 1], "prompt": prompts, "completion": [[call, {"role": "tool", "content": "3"}, done], [done]]}
    pq.write_table(pa.table(table | {"f": [1.0, 0.0], "advantage": [0.7, -0.7]}), tmp_path / "c.bin")
    found, _, _ = read(tmp_path)
    assert found.prompt == ["system: S\n\nuser: Q"] * 2
    assert found.completion == ["add(1, 2)\n\n3", "3"]


def test_missing_rewards_do_not_count_as_zero(tmp_path):
    nan = float("nan")
    path = tmp_path / "completions_00001.parquet"
    rewards = {"f": [1.0, nan, nan, 0.0], "g": [0.5, 0.5, nan, 0.5]}
    table(path, 1, ["a"] * 2 + ["b"] * 2, rewards, [0.7, -0.7, 0.0, 0.0])
    found, _, _ = read(tmp_path)
    assert np.array_equal(found.score, [1.5, 0.5, nan, 0.5], equal_nan=True)
    found, _, _ = read(tmp_path, reward_weights=[2.0, 1.0])
    assert np.array_equal(found.score, [2.5, 0.5, nan, 0.5], equal_nan=True)


def test_a_logged_number_is_not_a_reward_function(tmp_path):
    path = tmp_path / "completions_00001.parquet"
    rewards = {"f": [1.0, 0.0, 0.0, 1.0], "length": [3.0, 9.0, 5.0, 8.0]}
    table(path, 1, ["a"] * 2 + ["b"] * 2, rewards, [0.7, -0.7, -0.7, 0.7])
    found, _, notes = read(tmp_path)
    assert list(found.components) == ["f"] and found.score.tolist() == [1, 0, 0, 1]
    assert notes == ["not taken for reward functions, as they are no part of the advantages: length"]
    found, _, _ = read(tmp_path, components=["f", "length"])
    assert list(found.components) == ["f", "length"]


def test_weights_are_read_from_the_advantages(tmp_path):
    f = np.array([1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0])
    g = np.array([0.0, 1.0, 1.0, 0.0, 0.5, 0.0, 0.2, 1.0])
    summed = (f + 0.25 * g).reshape(2, 4)
    advantage = (summed - summed.mean(1, keepdims=True)) / (summed.std(1, ddof=1, keepdims=True) + 1e-4)
    path = tmp_path / "completions_00001.parquet"
    table(path, 1, ["a"] * 4 + ["b"] * 4, {"f": f.tolist(), "g": g.tolist()}, advantage.ravel().tolist())
    found, _, notes = read(tmp_path)
    assert np.allclose(found.score, [1.0, 0.25, 1.25, 0.0, 0.125, 1.0, 1.05, 0.25], atol=1e-3)
    assert notes == ["the advantages are those of rewards weighted f 1, g 0.25"]


def test_known_evaluations_are_in_the_sample(tmp_path):
    for step in range(1, 201):
        prompts = ["x"] * 4 if step in (77, 111) else [f"p{step}"] * 4
        trl(tmp_path, step, prompts, [1.0, 1.0, 0.0, 0.0], [0.9, 0.9, -0.9, -0.9])
    found, _, notes = read(tmp_path, evaluated=[77, 111], keep=300)
    assert set(found.step[found.held_out].tolist()) == {77, 111}
    assert (found.step.min(), found.step.max()) == (1, 200) and len(found) <= 300
    assert notes == [f"a sample of {len(found)} of about 800 rollouts was read"]


def test_without_pyarrow_tables_are_a_note(tmp_path, monkeypatch):
    trl(tmp_path, 1, ["a", "a"], [1.0, 0.0], [0.7, -0.7])
    for name in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, name, None)
    found, took, notes = read(tmp_path)
    assert (found, took) == (None, [])
    assert notes[0].startswith("pyarrow is not installed: pip install 'gxpo[doctor]'")


# ---------------------------------------------------------------- verl
def dump(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))


def verl(step, prompt, output, score, **more):
    return {"input": prompt, "output": output, "gts": "4", "score": score, "step": step} | more


def test_verl_rows_are_grouped_by_input(tmp_path):
    rows = [verl(1, "a", "o1", 1.0, acc=True, fmt=0.5), verl(1, "b", "o2", 0.0), verl(1, "a", "o3", 0.0, acc=False)]
    dump(tmp_path / "rollout/1.jsonl", rows)
    dump(tmp_path / "val/1.jsonl", [verl(1, "c", "o4", 1.0, request_id="7")])
    found, took, notes = read(tmp_path)
    assert found.prompt == ["a", "a", "b", "c"]
    assert found.group.tolist() == [0, 0, 1, 2]
    assert found.held_out.tolist() == [False, False, False, True]
    assert found.reference == ["4"] * 4
    assert np.array_equal(found.success, [1, 0, np.nan, np.nan], equal_nan=True)
    assert list(found.components) == ["fmt"]
    assert found.where == ["rollout/1.jsonl:1", "rollout/1.jsonl:3", "rollout/1.jsonl:2", "val/1.jsonl:1"]
    assert (found.grouped_by, len(took), notes) == ("prompt", 2, [])


def test_verl_rows_with_a_uid_are_grouped_by_it(tmp_path):
    dump(tmp_path / "1.txt", [verl(1, "a", "o", 1.0, uid=u) for u in ("u", "v", "u")])
    found, _, _ = read(tmp_path)
    assert (found.group.tolist(), found.grouped_by) == ([0, 0, 1], "recorded")


def test_the_rarer_folder_with_the_same_prompts_again_is_held_out(tmp_path):
    for step in range(1, 7):
        dump(tmp_path / f"one/{step}.jsonl", [verl(step, f"p{step}", "o", 1.0)] * 2)
    for step in (3, 6):
        dump(tmp_path / f"two/{step}.jsonl", [verl(step, "x", "o", 1.0), verl(step, "y", "o", 1.0)])
    found, _, _ = read(tmp_path)
    assert {found.prompt[i] for i in np.flatnonzero(found.held_out)} == {"x", "y"}


@pytest.mark.parametrize(
    ("gts", "reference"),
    [(4, "4"), (4.0, "4"), (["4"], "4"), ({"target": 4}, "4"), (None, None), ({"k": [1, 2]}, '{"k": [1, 2]}')],
)
def test_a_ground_truth_may_be_any_json(tmp_path, gts, reference):
    dump(tmp_path / "1.jsonl", [{"input": "a", "output": "o", "gts": gts, "score": 1.0}])
    assert read(tmp_path)[0].reference == [reference]


def test_a_sample_has_whole_groups_of_all_steps(tmp_path):
    for step in range(1, 11):
        dump(tmp_path / f"{step}.jsonl", [verl(step, f"p{i % 50}", f"o{i}", 0.0) for i in range(200)])
    found, _, notes = read(tmp_path, keep=100)
    assert sorted(set(found.step.tolist())) == list(range(1, 11))
    assert {len(g) for g in groups(found)} == {4}
    assert (len(found), found.of) == (80, 2000)
    assert notes == ["a sample of 80 of 2,000 rollouts was read"]


# ---------------------------------------------------------------- gxpo
def record(group, n, **more):
    turn = {"action": [5, 6], "logprob": [-1.0, -1.0], "finish": "stop", "action_text": "hi"}
    head = {"schema": "gxpo.rollouts/1", "task": group, "group": group, "id": f"{group}/{n}", "prompt": [1]}
    return head | {"prompt_text": "Q", "turns": [turn], "reward": 1.0} | more


def test_records_of_gxpo(tmp_path):
    cut = {"action": [5], "finish": "length", "action_text": "ho"}
    full = {"rewards": {"f": 1.0, "g": None}, "success": True, "info": {"advantage": 0.5}}
    train = [record("s1/a", 0, **full, sampling={"temperature": 0.7}), record("s1/a", 1, turns=[cut], reward=None)]
    fork = record("s1/a", 2, fork={"of": "s1/a/0", "turn": 0, "token": None}, turns=[cut], prompt=[])
    del fork["prompt_text"]
    dump(tmp_path / "rollouts/step-000010.jsonl", [*train, fork])
    dump(tmp_path / "evaluations/step-000010.jsonl", [record("s-1/b", 0)])
    found, took, notes = read(tmp_path)
    assert found.step.tolist() == [10] * 4 and found.held_out.tolist() == [False] * 3 + [True]
    assert found.group.tolist() == [0, 0, 0, 1]
    assert found.completion == ["hi", "ho", "hi\n\nho", "hi"] and found.prompt == ["Q"] * 4
    assert np.array_equal(found.score, [1, np.nan, 1, 1], equal_nan=True)
    assert np.array_equal(found.components["g"], [np.nan] * 4, equal_nan=True)
    assert found.tokens.tolist() == [2, 1, 3, 2] and found.truncated.tolist() == [0, 1, 1, 0]
    assert (found.advantage[0], found.temperature[0], found.success[0]) == (0.5, 0.7, 1.0)
    assert (found.grouped_by, len(took), notes) == ("recorded", 2, [])


# ---------------------------------------------------------------- plain tables
ROWS = [
    {"step": 1, "uid": "u", "question": "a", "response": "o1", "reward": 1.0, "answer": "7", "advantage": 0.5},
    {"step": 1, "uid": "v", "question": "a", "response": "o2", "reward": 0.0, "answer": "7", "advantage": -0.5},
    {"step": 2, "uid": "u", "question": "a", "response": "o3", "reward": 0.5, "answer": "7", "advantage": 0.0},
]


def write_lines(path):
    path.write_text("".join(json.dumps(r) + "\n" for r in ROWS))


def write_array(path):
    path.write_text(json.dumps(ROWS))


def write_csv(path):
    path.write_text("\n".join([";".join(ROWS[0]), *(";".join(map(str, r.values())) for r in ROWS)]))


def write_parquet(path):
    pq.write_table(pa.Table.from_pylist(ROWS), path)


@pytest.mark.parametrize("write", [write_lines, write_array, write_csv, write_parquet])
def test_plain_tables_in_four_formats_whatever_their_suffix(tmp_path, write):
    write(tmp_path / "table.log")
    found, took, notes = read(tmp_path)
    assert found.step.tolist() == [1, 1, 2] and found.group.tolist() == [0, 1, 2]
    assert (found.prompt, found.completion, found.reference) == (["a"] * 3, ["o1", "o2", "o3"], ["7"] * 3)
    assert found.score.tolist() == [1.0, 0.0, 0.5] and found.advantage.tolist() == [0.5, -0.5, 0.0]
    assert (found.grouped_by, [p.name for p in took], notes) == ("recorded", ["table.log"], [])


def test_a_csv_with_a_line_of_another_length(tmp_path):
    (tmp_path / "a.csv").write_text('prompt,output,score\na,"x\ny",1\nb\nc,z,oops\n')
    found, _, notes = read(tmp_path)
    assert found.completion == ["x\ny", "z"]
    assert np.array_equal(found.score, [1, np.nan], equal_nan=True)
    assert notes[0] == "1 lines of rollouts could not be read"


def test_a_table_of_metrics_is_none_of_rollouts(tmp_path):
    (tmp_path / "a.csv").write_text("step,reward,loss\n1,0.5,0.1\n")
    dump(tmp_path / "m.jsonl", [{"step": 1, "reward": 0.5}])
    assert read(tmp_path) == (None, [], [])


def test_a_sample_of_one_file_with_many_steps_is_spread_over_them(tmp_path):
    dump(tmp_path / "all.jsonl", [verl(step, f"p{step}.{i // 4}", "o", 0.0) for step in range(100) for i in range(40)])
    found, _, _ = read(tmp_path, keep=200)
    steps = sorted(set(found.step.tolist()))
    assert len(steps) >= 50 and (steps[0], steps[-1]) == (0, 99)
    assert {len(g) for g in groups(found)} == {4}


def test_stretches_of_a_large_file_hold_whole_groups(tmp_path):
    dump(tmp_path / "all.jsonl", [verl(i // 500, f"p{i // 4}", "o" * 180, 0.0) for i in range(25_000)])
    found = read_lines(tmp_path / "all.jsonl", ["step", "input"], 400, large=2**20)
    sizes = Counter(row["input"] for _, row in found.rows)
    assert set(sizes.values()) == {4} and sum(sizes.values()) >= 190
    assert len({row["step"] for _, row in found.rows}) > 40
    assert abs(found.total - 25_000) < 250 and not found.exact and found.bad == 0


@pytest.mark.parametrize("decoded", [2**30, 0])
def test_a_large_parquet_table_is_read_in_stretches(tmp_path, monkeypatch, decoded):
    monkeypatch.setattr("gxpo.doctor.rollout_tables.MOST_DECODED", decoded)
    n = 200_000
    step, prompt = [(i + 1) // 1_000 for i in range(n)], [f"p{(i + 1) // 4}" for i in range(n)]
    table = pa.table({"step": step, "prompt": prompt, "output": ["o"] * n, "score": [0.0] * n})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=4_000)
    found, _, _ = read(tmp_path, keep=1_000)
    assert {len(g) for g in groups(found)[1:-1]} == {4} and found.step[0] == 0
    assert found.step[-1] == (200 if decoded else 197)
    assert len(set(found.step.tolist())) >= 30 and found.of == n


def test_references_come_from_a_file_of_tasks(tmp_path):
    dump(tmp_path / "run/rollouts/step-000001.jsonl", [record("a", 0), record("b", 1, prompt_text="R")])
    dump(tmp_path / "tasks.jsonl", [{"prompt": "Q", "answer": 5}, {"prompt": "R", "answer": 1}])
    dump(tmp_path / "more.jsonl", [{"prompt": "R", "answer": 2}])
    found, took, _ = read(tmp_path)
    assert found.reference == ["5", None]
    assert {p.name for p in took} == {"step-000001.jsonl", "tasks.jsonl", "more.jsonl"}


# ---------------------------------------------------------------- damage
def test_damaged_files_are_counted_and_never_raise(tmp_path):
    rows = [
        json.dumps(verl(1, "a", "o", 1.0)).encode(),
        b'{"input": "\xff\xfe", "output": "b", "gts": null, "score": 0}',
    ]
    (tmp_path / "1.jsonl").write_bytes(b"\n".join([*rows, b'{"input": "a", "outp']))
    (tmp_path / "2.parquet").write_bytes(b"PAR1 nothing more")
    (tmp_path / "3.bin").write_bytes(bytes(range(256)) * 9)
    (tmp_path / "4.jsonl").write_bytes(b"")
    (tmp_path / "5.jsonl").write_bytes(b"{" * 100_000)
    (tmp_path / "6.jsonl").write_text('{"prompt": 1}\n[1]\nnull\n')
    found, took, notes = read(tmp_path)
    assert [p.name for p in took] == ["1.jsonl"]
    assert found.prompt == ["a", "��"]
    assert notes[0] == "1 lines of rollouts could not be read"


def test_a_truncated_table_among_others(tmp_path):
    for step in (1, 2):
        trl(tmp_path, step, ["a", "a", "b", "b"], [1.0, 0.0] * 2, [0.7, -0.7] * 2)
    whole = (tmp_path / "completions/completions_00002.parquet").read_bytes()
    (tmp_path / "completions/completions_00003.parquet").write_bytes(whole[: len(whole) // 2])
    found, _, notes = read(tmp_path)
    assert len(found) == 4 + 4
    assert notes == ["1 tables of completions could not be read"]


def test_bytes_of_a_table_that_are_not_utf_8_are_replaced(tmp_path):
    texts = pa.array([b"a\x9e", b"a\x9e"], pa.binary()).view(pa.string())
    columns = {"step": [1, 1], "prompt": texts, "completion": ["x", "y"], "f": [1.0, 0.0], "advantage": [0.7, -0.7]}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    found, _, notes = read(tmp_path)
    assert (found.prompt, notes) == (["a\ufffd"] * 2, [])


def test_nothing_found(tmp_path):
    assert rollouts([], tmp_path) == (None, [], [])
