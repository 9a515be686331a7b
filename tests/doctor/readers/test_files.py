"""Files of a run: tables, event files of TensorBoard, and damaged, foreign or hostile content."""

import contextlib
import json
import os
import random
import struct
import zlib

import numpy as np
import pytest

from gxpo.base.errors import GxpoError, RecordError
from gxpo.doctor import read
from gxpo.doctor.readers import files


def one(tmp_path, text, name):
    (tmp_path / name).write_text(text, encoding="utf-8")
    return read(tmp_path / name)


def test_wandb_export(tmp_path):
    text = (
        '"Step","warm-sky-7 - train/reward","warm-sky-7 - train/reward__MIN","warm-sky-7 - train/reward__MAX",'
        '"warm-sky-7 - eval/reward"\n"10","0.25","0.25","0.25",""\n"20","0.5","0.5","0.5","0.75"\n"30","NaN","","",""\n'
    )
    log = one(tmp_path, text, "wandb.csv")
    assert log.steps("reward").tolist() == [10, 20]
    assert log.values("reward").tolist() == [0.25, 0.5]
    assert np.isnan(log.series["reward"].values[2])
    assert log.series["eval/reward"].steps.tolist() == [20]
    assert log.key("reward") == "train/reward"  # of whichever trainer
    assert log.raw == {}


def test_wandb_export_of_two_runs_is_refused(tmp_path):
    text = '"Step","a - train/reward","b - train/reward"\n1,0.5,0.25\n'
    with pytest.raises(RecordError, match=r"w.csv holds 2 runs: a, b: choose one, --run 'b'"):
        one(tmp_path, text, "w.csv")


def test_table_of_a_notebook_in_markdown(tmp_path):
    text = (
        "Look at step 3 | it is odd\n\n"
        "Step | Training Loss | reward | reward_std | completion_length | kl | rewards / match_exactly\n"
        "-- | -- | -- | -- | -- | -- | --\n"
        "1 | 0.000000 | -17.25 | 1.5 | 445.5 | 0.000000 | 0.0\n"
        "2 | -0.000000 | -10.5 | 1.75 | 389.25 | 0.000010 | -0.5\n\nand that was it | really\n"
    )
    log = one(tmp_path, text, "issue.md")
    assert log.source == "trl"
    assert log.values("reward").tolist() == [-17.25, -10.5]
    assert log.values("loss").tolist() == [0, 0]
    assert log.values("component/match_exactly").tolist() == [0, -0.5]
    assert log.values("length").tolist() == [445.5, 389.25]


def test_tabs_and_no_steps(tmp_path):
    log = one(tmp_path, "reward\tgrad_norm\tnote\n0.5\t1.0\tfine\n0.75\t2.0\tbad\n", "t.tsv")
    assert log.steps("reward").tolist() == [1, 2]
    assert log.values("grad_norm").tolist() == [1, 2]


def record(data):
    """A record of an event file; the checksums are not looked at."""
    return struct.pack("<QI", len(data), 0) + data + struct.pack("<I", zlib.crc32(data))


def field(number, kind, data):
    return bytes([number << 3 | kind]) + data


def event(step, **scalars):
    """tensorflow's Event: 1 wall_time double, 2 step varint, 3 file_version, 5 summary of values (1 tag, 2 float)."""
    values = b""
    for tag, value in scalars.items():
        inner = field(1, 2, bytes([len(tag)]) + tag.encode()) + field(2, 5, struct.pack("<f", value))
        values += field(1, 2, bytes([len(inner)]) + inner)
    return record(
        field(1, 1, struct.pack("<d", 1.0)) + field(2, 0, bytes([step])) + field(5, 2, bytes([len(values)]) + values)
    )


HEADER = record(field(1, 1, struct.pack("<d", 1.0)) + field(3, 2, b"\x0dbrain.Event:2"))


def test_event_file_of_transformers(tmp_path):
    rows = event(1, **{"train/reward": 0.5, "train/rewards/f/mean": 0.5}) + event(2, **{"train/reward": 0.75})
    rows += event(2, **{"eval/reward": 0.25, "eval/rewards/f/mean": 0.25})
    path = tmp_path / "runs" / "events.out.tfevents.1.host"
    path.parent.mkdir()
    path.write_bytes(HEADER + rows + event(3, **{"train/reward": 1.0})[:-9])
    log = read(tmp_path)
    assert log.source == "trl"
    assert log.values("reward").tolist() == [0.5, 0.75]
    assert log.key("component/f") == "rewards/f/mean"
    assert log.values("eval/reward").tolist() == [0.25]
    assert log.notes == ["runs/events.out.tfevents.1.host: the end is cut short and was left out"]


def test_event_file_of_transformers_holds_its_arguments(tmp_path):
    text = b'{"learning_rate": 3e-06, "num_generations": 4, "beta": 0.01, "max_steps": -1, "logging_steps": 5}'
    tensor = field(1, 0, b"\x07") + field(8, 2, bytes([len(text)]) + text)  # a text: 1 type, 8 string_val
    inner = field(1, 2, b"\x11args/text_summary") + field(8, 2, bytes([len(tensor)]) + tensor)
    summary = field(1, 2, bytes([len(inner) & 127 | 128, len(inner) >> 7]) + inner)
    text_event = record(field(5, 2, bytes([len(summary) & 127 | 128, len(summary) >> 7]) + summary))
    path = tmp_path / "events.out.tfevents.1.host"
    path.write_bytes(HEADER + text_event + event(5, **{"train/reward": 0.5, "train/reward_std": 0.5}))
    log = read(path)
    assert log.config == {"lr": 3e-6, "group_size": 4, "beta": 0.01}
    assert log.steps("reward").tolist() == [5]


@pytest.mark.parametrize(
    "names",
    [
        ("rollouts/reward_mean", "rollouts/zero_signal_groups", "rollouts/success_rate"),
        ("reward/mean", "zero/signal_groups", "success/rate"),  # of the release before
    ],
)
def test_event_file_of_gxpo(tmp_path, names):
    path = tmp_path / "events.out.tfevents.1.host"
    path.write_bytes(HEADER + event(1, **dict(zip(names, (0.5, 0.25, 0.5), strict=True))))
    log = read(path)
    assert log.source == "gxpo"
    assert log.values("reward").tolist() == [0.5]
    assert log.values("zero_signal").tolist() == [0.25]
    assert log.key("zero_signal") == "zero_signal_groups"


def test_event_file_without_the_library_is_a_note(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tensorboard.compat.proto", None)
    monkeypatch.delitem(__import__("sys").modules, "tensorboard.compat.proto.event_pb2", raising=False)
    path = tmp_path / "events.out.tfevents.1.host"
    path.write_bytes(HEADER + event(1, **{"train/reward": 0.5}))
    log = read(path)
    assert log.read == []
    assert "pip install 'gxpo[tensorboard]'" in log.notes[0]


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


def test_dump_alone_tells_its_trainer(tmp_path):
    rows = [{"input": "q", "output": f"a{i}", "gts": "a1", "score": float(i == 1), "step": 1} for i in range(4)]
    (tmp_path / "1.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    log = read(tmp_path)
    assert log.source == "verl"
    assert log.read == ["1.jsonl"]
    assert log.rollouts is not None and len(log.rollouts) == 4
