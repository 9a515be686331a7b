"""Damaged, foreign and hostile files: a `RunLog` with notes, or an error of gxpo's own, never another."""

import contextlib
import json
import os
import random

import pytest

from gxpo.base.errors import GxpoError, RecordError
from gxpo.doctor import read
from gxpo.doctor.readers import files

ROWS = [{"loss": 0.5, "reward": 0.25, "rewards/f/mean": 0.25, "step": 1}, {"eval_reward": 0.5, "step": 1}]
SAMPLES = {
    "state": json.dumps({"log_history": ROWS, "max_steps": 2}, indent=1),
    "rows": "".join(json.dumps({"step": r["step"], "data": r}) + "\n" for r in ROWS),
    "console": "\r 50%|##| 1/2 [0:01]\r{'loss': '0.5', 'reward': 'nan'}\nTraceback (most recent call last):\n x\nE: y",
    "verl": "(T pid=1) {'actor_rollout_ref': {'a': 1}}\nstep:1 - actor/lr:1e-06 - critic/score/mean:np.float64(0.5)\n",
    "table": "Step | reward | kl\n-- | -- | --\n1 | 0.5 | 0.25\n",
    "settings": "learning_rate: 1.0e-6\nnum_generations: 8\nmodel: {a: [1, 2]}\n",
}


@pytest.mark.parametrize("name", SAMPLES)
def test_cut_anywhere(tmp_path, name):
    data = SAMPLES[name].encode()
    path = tmp_path / "file"
    for end in range(len(data)):
        path.write_bytes(data[:end])
        read(path)


@pytest.mark.parametrize("name", SAMPLES)
def test_bytes_changed(tmp_path, name):
    rng = random.Random(name)
    path = tmp_path / "file"
    for _ in range(150):
        data = bytearray(SAMPLES[name].encode())
        for _ in range(rng.choice((1, 3, 10))):
            data[rng.randrange(len(data))] = rng.randrange(256)
        path.write_bytes(data)
        with contextlib.suppress(GxpoError):
            read(path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x80\x04\x95" + bytes(100),
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b'{"step": ' + b"9" * 6000 + b', "reward": 0.5}\n',
        b'{"step": 1e999, "reward": 1}\n{"step": 2, "reward": 1' + b"0" * 400 + b"}\n",
        b"step:" + b"9" * 400 + b" - critic/score/mean:1\n",
        b"{'loss': " + b"[" * 1000 + b"\n" * 1000,
        b"a: &a [*a, *a]\nlearning_rate: *a\nnum_generations: 8\n",
        b"\xff\xfe{\x00",
        b"\xff\xfe" + "{'reward': 0.5, 'reward_std': 1}".encode("utf-16-le")[:-1],
    ],
    ids=["empty", "pickle", "lists", "objects", "long", "infinite", "long verl", "open", "alias", "half", "odd"],
)
def test_odd_content(tmp_path, content):
    path = tmp_path / "file.log"
    path.write_bytes(content)
    log = read(tmp_path)
    assert log.last_step <= 2


def test_what_no_run_writes_is_left_alone(tmp_path):
    for name in ("node_modules/a", ".git", "nested/.cache"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "metrics.jsonl").write_text('{"step": 1, "reward": 0.5}\n')
    for name in ("model.safetensors", "optimizer.pt", "tokenizer.json"):
        (tmp_path / name).write_text('{"step": 1, "reward": 0.5}\n')
    os.symlink(tmp_path, tmp_path / "loop")
    os.mkfifo(tmp_path / "pipe")
    log = read(tmp_path)
    assert log.read == []
    assert log.notes[0] == "not opened, as unpickling could run code: optimizer.pt"
    with pytest.raises(RecordError, match="no such file or directory"):
        read(tmp_path / "pipe")


def test_of_a_file_over_the_limit_both_ends_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LARGEST", 4000)
    lines = [f"step:{i} - critic/score/mean:{i}.0 - actor/lr:1e-06\n" for i in range(1, 401)]
    (tmp_path / "log").write_text("".join(lines))
    log = read(tmp_path)
    steps = log.steps("reward").tolist()
    assert (steps[0], steps[-1]) == (1, 400)
    assert 60 < len(steps) < 120
    assert log.notes == ["log: larger than 4,000 bytes: only the first and the last 2,000 were read"]


def test_settings_that_disagree_are_said(tmp_path):
    (tmp_path / "m.jsonl").write_text('{"step": 1, "reward": 0.5, "reward_std": 0.5, "completions/mean_length": 3}\n')
    (tmp_path / "a.yaml").write_text("learning_rate: 1.0e-6\nnum_generations: 8\n")
    (tmp_path / "b.yaml").write_text("learning_rate: 2.0e-6\nnum_generations: 8\n")
    log = read(tmp_path)
    assert log.config == {"lr": 1e-6, "group_size": 8}
    assert log.notes == ["b.yaml: lr is 2e-06 there, but 1e-06 elsewhere, which counts"]
