"""Rows of studies: written whole, found by their keys, read after a kill."""

import hashlib
import json
import sys
from pathlib import Path

import pytest

from gxpo.base.errors import RecordError

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
from study_rows import (
    append,
    bits_of,
    digest,
    missing,
    pack,
    read_store,
    result_of,
    row_of,
    verdicts_of,
    with_former,
)

KEYS = {"method": "grpo", "optim.lr": 1e-4, "seed": 3}


@pytest.fixture
def run(tmp_path):
    path = tmp_path / "run"
    (path / "evaluations").mkdir(parents=True)
    metrics = [
        {"step": s, "generated_tokens": 100 * s, "optimiser_steps": 2, "time_step_s": 0.5, "entropy": s / 10,
         "discarded_rollouts": s}
        for s in range(1, 5)
    ]  # fmt: skip
    (path / "metrics.jsonl").write_text("".join(json.dumps(m) + "\n" for m in metrics))
    evaluations = [{"step": s, "eval_accuracy": a, "eval_length": 5.0} for s, a in ((0, 0.25), (2, 0.5), (4, 0.75))]
    (path / "evaluations.jsonl").write_text("".join(json.dumps(e) + "\n" for e in evaluations))
    for step, verdicts in ((0, [0, 0, 0, 1]), (2, [0, 0, 1, 1]), (4, [0, 1, 1, 1])):
        table = {f"t{i}": float(v) for i, v in enumerate(verdicts)}
        (path / "evaluations" / f"step-{step:06d}.json").write_text(json.dumps(table))
    return path


def test_a_run_becomes_a_row_and_a_result(run):
    row = row_of(run, KEYS, commit="abc")
    result = result_of(json.loads(json.dumps(row)), "arm")
    assert [(p.step, p.tokens, p.updates, p.seconds, p.value) for p in result.points] == [
        (0, 0, 0, 0.0, 0.25),
        (2, 200, 4, 1.0, 0.5),
        (4, 400, 8, 2.0, 0.75),
    ]
    assert list(result.before.values()) == [0, 0, 0, 1]
    assert list(result.after.values()) == [0, 1, 1, 1]
    assert (result.seed, result.arm, result.discarded_rollouts, result.tokens) == (3, "arm", 4, 400)
    assert row["curves"]["entropy"] == [[1, 0.1], [2, 0.2], [3, 0.3], [4, 0.4]]


def test_a_row_has_the_word_of_the_doctor(run):
    """Four steps of a reward are too few for a verdict; thirty equal rewards of groups without signal are not."""
    assert row_of(run, KEYS)["doctor"] == []
    lines = [
        {"step": s, "generated_tokens": 100 * s, "optimiser_steps": 1, "time_step_s": 0.5, "reward_mean": 0.0,
         "reward_std": 0.0, "success_rate": 0.0, "zero_signal_groups": 1.0, "groups": 8, "discarded_rollouts": 0}
        for s in range(1, 31)
    ]  # fmt: skip
    (run / "metrics.jsonl").write_text("".join(json.dumps(m) + "\n" for m in lines))
    severities = {severity for severity, _ in row_of(run, KEYS)["doctor"]}
    assert severities and severities <= {"critical", "warning"}


def test_another_measure_has_no_verdicts(run):
    result = result_of(row_of(run, KEYS), "arm", "eval_length")
    assert result.end == 5.0
    assert not result.after
    with pytest.raises(RecordError, match="has no eval_pass_at_8; there is eval_accuracy, eval_length"):
        result_of(row_of(run, KEYS), "arm", "eval_pass_at_8")


def test_verdicts_that_are_shares_have_no_bits(run):
    (run / "evaluations" / "step-000004.json").write_text('{"t0": 0.5, "t1": 1.0}')
    assert bits_of(run / "evaluations" / "step-000004.json") is None
    assert verdicts_of(None) == {}


def test_digest_knows_keys_but_neither_order_nor_seed():
    assert digest(KEYS) == digest({"seed": 9, "optim.lr": 1e-4, "method": "grpo"})
    assert digest(KEYS) != digest({**KEYS, "optim.lr": 1e-3})


def test_line_cut_off_by_a_kill_is_replaced_by_the_next(run, tmp_path):
    store = tmp_path / "runs.jsonl"
    append(store, row_of(run, KEYS))
    with store.open("a") as file:
        file.write('{"digest": "x", "se')
    assert list(read_store(store)) == [(digest(KEYS), 3)]
    append(store, row_of(run, {**KEYS, "seed": 4}))
    assert [seed for _, seed in read_store(store)] == [3, 4]
    store.write_text("no json\n" + store.read_text())
    with pytest.raises(RecordError, match="line 1"):  # nothing in the middle is lost unseen
        read_store(store)


def test_missing_runs_are_asked_for_once(run, tmp_path):
    store = tmp_path / "runs.jsonl"
    append(store, row_of(run, KEYS))
    other = {**KEYS, "seed": 5}
    todo = missing([(KEYS, 3), (other, 5), (dict(reversed(other.items())), 5)], read_store(store))
    assert [seed for _, seed in todo] == [5]


def test_rows_of_the_former_task_order_are_reported_not_reused(run):
    """A finite list was drawn from its second step on: digests of before are written down."""
    listed, generated = {"method": "grpo", "task": "q.jsonl", "seed": 3}, {"method": "grpo", "task": "arithmetic"}
    name = hashlib.sha256(b'{"method": "grpo", "task": "q.jsonl"}').hexdigest()[:16]
    former = {"digest": name, "seed": 3, "keys": {"method": "grpo", "task": "q.jsonl"}}
    assert digest(generated) == hashlib.sha256(b'{"method": "grpo", "task": "arithmetic"}').hexdigest()[:16]
    assert digest(listed) != former["digest"]
    store = {(former["digest"], 3): former}
    assert missing([(listed, 3)], store) == [(listed, 3)]  # study.py makes it anew
    assert with_former(store)[digest(listed), 3] is former  # a report finds it
    row = row_of(run, {**listed, "seed": 4})
    assert row["first_step"] == 1 and "first_step" not in row_of(run, {**generated, "seed": 4})
    both = {**store, (row["digest"], 4): row}
    assert (digest(listed), 3) not in with_former(both)  # once some are new, the two are not mixed


def test_packed_rows_are_read_before_those_appended_since(tmp_path):
    store = tmp_path / "runs.jsonl"
    first, second = {"digest": "a", "seed": 0, "steps": 1}, {"digest": "b", "seed": 0, "steps": 2}
    append(store, first)
    pack(store)
    archived = (tmp_path / "runs.jsonl.gz").read_bytes()
    assert not store.exists() and read_store(store) == {("a", 0): first}
    append(store, second)
    assert read_store(store) == {("a", 0): first, ("b", 0): second}
    pack(store)
    assert read_store(store) == {("a", 0): first, ("b", 0): second}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["runs.jsonl.gz"]
    pack(store)  # nothing new: the same rows, the same bytes
    assert (
        read_store(store) == {("a", 0): first, ("b", 0): second}
        and (tmp_path / "runs.jsonl.gz").read_bytes() != archived
    )


def test_a_row_cut_off_by_a_kill_is_not_archived(tmp_path):
    store = tmp_path / "runs.jsonl"
    append(store, {"digest": "a", "seed": 0})
    with store.open("ab") as file:
        file.write(b'{"digest": "b", "se')
    with pytest.raises(json.JSONDecodeError):
        pack(store)
    assert read_store(store) == {("a", 0): {"digest": "a", "seed": 0}}
