"""Tables of rollouts in four formats: told apart by content, sampled in whole groups, damaged rows counted."""

import json
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


def read(tmp_path, **hints):
    return rollouts(sorted(p for p in tmp_path.rglob("*") if p.is_file()), tmp_path, **hints)


def groups(sample):
    return [np.flatnonzero(sample.group == g).tolist() for g in range(sample.group.max() + 1)]


def dump(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))


def verl(step, prompt, output, score, **more):
    return {"input": prompt, "output": output, "gts": "4", "score": score, "step": step} | more


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
    sample, files_read, notes = read(tmp_path)
    assert sample.step.tolist() == [1, 1, 2] and sample.group.tolist() == [0, 1, 2]
    assert (sample.prompt, sample.completion, sample.reference) == (
        ["a"] * 3,
        ["o1", "o2", "o3"],
        ["7"] * 3,
    )
    assert sample.score.tolist() == [1.0, 0.0, 0.5] and sample.advantage.tolist() == [0.5, -0.5, 0.0]
    assert (sample.grouped_by, [p.name for p in files_read], notes) == ("recorded", ["table.log"], [])


def test_a_csv_with_a_line_of_another_length(tmp_path):
    (tmp_path / "a.csv").write_text('prompt,output,score\na,"x\ny",1\nb\nc,z,oops\n')
    sample, _, notes = read(tmp_path)
    assert sample.completion == ["x\ny", "z"]
    assert np.array_equal(sample.score, [1, np.nan], equal_nan=True)
    assert notes[0] == "1 lines of rollouts could not be read"


def test_a_sample_of_one_file_is_spread_over_its_steps(tmp_path):
    dump(tmp_path / "all.jsonl", [verl(step, f"p{step}.{i // 4}", "o", 0.0) for step in range(100) for i in range(40)])
    sample, _, _ = read(tmp_path, keep=200)
    steps = sorted(set(sample.step.tolist()))
    assert len(steps) >= 50 and (steps[0], steps[-1]) == (0, 99)
    assert {len(g) for g in groups(sample)} == {4}


def test_stretches_of_a_large_file_hold_whole_groups(tmp_path):
    dump(tmp_path / "all.jsonl", [verl(i // 500, f"p{i // 4}", "o" * 180, 0.0) for i in range(25_000)])
    sample = read_lines(tmp_path / "all.jsonl", ["step", "input"], 400, large=2**20)
    sizes = Counter(row["input"] for _, row in sample.rows)
    assert set(sizes.values()) == {4} and sum(sizes.values()) >= 190
    assert len({row["step"] for _, row in sample.rows}) > 40
    assert abs(sample.total - 25_000) < 250 and not sample.exact and sample.bad == 0


@pytest.mark.parametrize("decoded", [2**30, 0])
def test_a_large_parquet_table_is_read_in_stretches(tmp_path, monkeypatch, decoded):
    monkeypatch.setattr("gxpo.doctor.rollout_tables.MOST_DECODED", decoded)
    n = 200_000
    step, prompt = [(i + 1) // 1_000 for i in range(n)], [f"p{(i + 1) // 4}" for i in range(n)]
    table = pa.table({"step": step, "prompt": prompt, "output": ["o"] * n, "score": [0.0] * n})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=4_000)
    sample, _, _ = read(tmp_path, keep=1_000)
    assert {len(g) for g in groups(sample)[1:-1]} == {4} and sample.step[0] == 0
    assert sample.step[-1] == (200 if decoded else 197)
    assert len(set(sample.step.tolist())) >= 30 and sample.total == n


def test_bytes_of_a_table_that_are_not_utf_8_are_replaced(tmp_path):
    texts = pa.array([b"a\x9e", b"a\x9e"], pa.binary()).view(pa.string())
    columns = {"step": [1, 1], "prompt": texts, "completion": ["x", "y"], "f": [1.0, 0.0], "advantage": [0.7, -0.7]}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    sample, _, notes = read(tmp_path)
    assert (sample.prompt, notes) == (["a\ufffd"] * 2, [])
