"""What TensorBoard, trackio and wandb have stored of a run that was killed and resumed: the lines of its metrics."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests import started
from tests.training.callbacks.parity import REWARD
from tests.training.callbacks.stored import KEYS, figures, in_events, lines, single

import gxpo
from gxpo.training.callbacks.loggers import _markdown_cell, tag

SCRIPT = """
import os, signal, sys
import gxpo

def watch(row):
    if row["step"] == 3:
        os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    if sys.argv[1] == "resume":
        gxpo.resume(sys.argv[2])
    else:
        reward, keys = eval(sys.argv[3])
        gxpo.train(reward=reward, steps=4, out=sys.argv[2], set=keys, watch=watch)
"""


def installed():
    return [name for name in ("tensorboard", "trackio", "wandb") if importlib.util.find_spec(name) is not None]


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A run of four steps that was killed after the third and resumed from the second, with all loggers."""
    path = tmp_path_factory.mktemp("killed")
    script = path / "script.py"
    script.write_text(SCRIPT)
    variables = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(gxpo.__file__).parents[1])}
    loggers = {"TRACKIO_DIR": str(path / "trackio"), "WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    keys = KEYS | {"trainer.callbacks": installed()}

    def done(*arguments):
        environment = os.environ | variables | loggers
        return started.run([script, *arguments], env=environment)

    first = done("train", str(path / "run"), repr((REWARD, keys)))
    assert first.returncode == -signal.SIGKILL, first.stderr
    second = done("resume", str(path / "run"))
    assert second.returncode == 0 and "callback" not in second.stderr, second.stderr
    return path


@pytest.mark.thorough
def test_tensorboard_of_a_killed_run(killed):
    assert in_events(killed / "run")[0] == single(lines(killed / "run"))


@pytest.mark.thorough
def test_trackio_of_a_killed_run(killed):
    pytest.importorskip("trackio")
    script = """
import json
from trackio.sqlite_storage import SQLiteStorage
config = SQLiteStorage.get_run_config("sums", "run")
print(json.dumps([SQLiteStorage.get_logs("sums", "run"), config["rollout.group_size"]]))
"""
    environment = os.environ | {"TRACKIO_DIR": str(killed / "trackio")}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    logs, group_size = json.loads(done.stdout.splitlines()[-1])
    assert sorted(log["step"] for log in logs) == [0, 1, 2, 3, 4] and group_size == 4
    assert {log["step"]: figures(log) for log in logs} == lines(killed / "run")
    tables = {log["step"]: log["samples/train"]["_value"] for log in logs if "samples/train" in log}
    assert sorted(tables) == [2, 4] and tables[4][0]["prompt"].endswith("=")


def stored_by_wandb(folder):
    """(id of the run, step -> figures) of the newest offline directory: a log of LevelDB's format, of protobufs."""
    from wandb.proto import wandb_internal_pb2

    path = sorted(folder.glob("offline-run-*/*.wandb"))[-1]
    data, at, actual, rows, run_id = path.read_bytes(), 7, b"", {}, None
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:  # a block's end
            at += 32768 - at % 32768
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        actual = (b"" if kind in (1, 2) else actual) + data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            record = wandb_internal_pb2.Record.FromString(actual)
            run_id = record.run.run_id or run_id
            if record.WhichOneof("record_type") == "history":
                row = {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.history.item}
                rows[row["_step"]] = row
    return run_id, rows


@pytest.mark.thorough
def test_wandb_of_a_killed_run(killed):
    """The directory of the resumed part has the whole run: what `wandb sync` sends replaces what it sent before."""
    pytest.importorskip("wandb")
    run = killed / "run"
    run_id, rows = stored_by_wandb(run / "wandb")
    assert {step: figures(row) for step, row in rows.items()} == lines(run)
    first, last = sorted((run / "wandb").glob("offline-run-*"))
    assert first.name.endswith(run_id) and last.name.endswith(run_id)
    tables = [json.loads(p.read_text()) for p in last.rglob("*.table.json")]
    assert {(row[0], row[1]) for table in tables for row in table["data"]} == {
        (0, "eval"), (2, "eval"), (4, "eval"), (2, "train"), (4, "train"),
    }  # fmt: skip
    assert tables[0]["columns"][3:6] == ["prompt", "completion", "reward"]


@pytest.mark.slow
def test_a_resumed_run_has_every_metric_of_every_step_once(tmp_path):
    def watch(row):
        if row["step"] == 3:
            raise RuntimeError("out of power")

    keys = KEYS | {"trainer.callbacks": ["tensorboard"]}
    with pytest.raises(RuntimeError, match="out of power"):
        gxpo.train(reward=REWARD, steps=4, out=tmp_path / "run", set=keys, watch=watch)
    run = gxpo.resume(tmp_path / "run")
    stored, events = in_events(run.path)
    assert stored == single(lines(run.path))
    assert [event.step for event in events.Scalars("rollouts/zero_signal_groups")] == [1, 2, 3, 4]
    assert [event.step for event in events.Scalars("eval/eval_accuracy")] == [0, 2, 4]
    tables = [event.tensor_proto.string_val[0].decode() for event in events.Tensors("samples/train/text_summary")]
    assert len(tables) == 2 and tables[0].startswith("| task | prompt | completion | reward |")


def test_markdown_in_texts_is_escaped():
    assert (
        _markdown_cell("a|b\n*c* <d>") == r"a\|b<br>\*c\* &lt;d&gt;"
        and _markdown_cell(None) == ""
        and _markdown_cell(0.123456) == "0.1235"
    )


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("eval_accuracy", "eval/eval_accuracy"),
        ("memory_peak_mb", "time/memory_peak_mb"),
        ("length_mean", "rollouts/length_mean"),
        ("generated_tokens", "tokens/generated_tokens"),
        ("grad_norm", "update/grad_norm"),
    ],
)
def test_a_tag_is_the_group_of_a_metric_and_its_name(metric, expected):
    assert tag(metric) == expected
