"""Files of rollouts in a run: found by content, references added, evaluations apart, damage told."""

import json
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

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


def test_without_pyarrow_tables_are_a_note(tmp_path, monkeypatch):
    trl(tmp_path, 1, ["a", "a"], [1.0, 0.0], [0.7, -0.7])
    for name in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, name, None)
    sample, files_read, notes = read(tmp_path)
    assert (sample, files_read) == (None, [])
    assert notes[0].startswith("pyarrow is not installed: pip install 'gxpo[doctor]'")


def dump(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))


def verl(step, prompt, output, score, **more):
    return {"input": prompt, "output": output, "gts": "4", "score": score, "step": step} | more


def test_the_rarer_folder_with_repeated_prompts_is_held_out(tmp_path):
    for step in range(1, 7):
        dump(tmp_path / f"one/{step}.jsonl", [verl(step, f"p{step}", "o", 1.0)] * 2)
    for step in (3, 6):
        dump(tmp_path / f"two/{step}.jsonl", [verl(step, "x", "o", 1.0), verl(step, "y", "o", 1.0)])
    sample, _, _ = read(tmp_path)
    assert {sample.prompt[i] for i in np.flatnonzero(sample.held_out)} == {"x", "y"}


def record(group, n, **more):
    turn = {"action": [5, 6], "logprob": [-1.0, -1.0], "finish": "stop", "action_text": "hi"}
    head = {"schema": "gxpo.rollouts/1", "task": group, "group": group, "id": f"{group}/{n}", "prompt": [1]}
    return head | {"prompt_text": "Q", "turns": [turn], "reward": 1.0} | more


def test_a_table_of_metrics_is_none_of_rollouts(tmp_path):
    (tmp_path / "a.csv").write_text("step,reward,loss\n1,0.5,0.1\n")
    dump(tmp_path / "m.jsonl", [{"step": 1, "reward": 0.5}])
    assert read(tmp_path) == (None, [], [])


def test_references_come_from_a_file_of_tasks(tmp_path):
    dump(tmp_path / "run/rollouts/step-000001.jsonl", [record("a", 0), record("b", 1, prompt_text="R")])
    dump(tmp_path / "tasks.jsonl", [{"prompt": "Q", "answer": 5}, {"prompt": "R", "answer": 1}])
    dump(tmp_path / "more.jsonl", [{"prompt": "R", "answer": 2}])
    sample, files_read, _ = read(tmp_path)
    assert sample.reference == ["5", None]
    assert {p.name for p in files_read} == {"step-000001.jsonl", "tasks.jsonl", "more.jsonl"}


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
    sample, files_read, notes = read(tmp_path)
    assert [p.name for p in files_read] == ["1.jsonl"]
    assert sample.prompt == ["a", "��"]
    assert notes[0] == "1 lines of rollouts could not be read"


def test_a_truncated_table_among_others(tmp_path):
    for step in (1, 2):
        trl(tmp_path, step, ["a", "a", "b", "b"], [1.0, 0.0] * 2, [0.7, -0.7] * 2)
    data = (tmp_path / "completions/completions_00002.parquet").read_bytes()
    (tmp_path / "completions/completions_00003.parquet").write_bytes(data[: len(data) // 2])
    sample, _, notes = read(tmp_path)
    assert len(sample) == 4 + 4
    assert notes == ["1 tables of completions could not be read"]


def test_nothing_found(tmp_path):
    assert rollouts([], tmp_path) == (None, [], [])
