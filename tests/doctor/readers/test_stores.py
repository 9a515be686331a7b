"""Stores of trackers: MLflow's folders and SQLite file, trackio's SQLite files, whole and broken."""

import json
import sqlite3
from contextlib import closing

import pytest

from gxpo.base.errors import RecordError
from gxpo.doctor import diagnose, read
from gxpo.doctor.readers import stores

LINES = "".join(f"1700000000 {0.25 + 0.0625 * i} {i + 1}\n" for i in range(4))


def mlflow_folder(path, metrics):
    run = path / "mlruns" / "0" / "a1"
    (run / "metrics").mkdir(parents=True)
    (run / "meta.yaml").write_text("run_id: a1\n")
    for key, text in metrics.items():
        (run / "metrics" / key).parent.mkdir(parents=True, exist_ok=True)
        (run / "metrics" / key).write_text(text)
    return run


def trackio_file(path, rows, names=("one",)):
    with closing(sqlite3.connect(path)) as store:
        store.execute(
            "CREATE TABLE metrics (id INTEGER PRIMARY KEY, timestamp TEXT, run_name TEXT, step INT, metrics TEXT)"
        )
        store.execute("CREATE TABLE configs (id INTEGER PRIMARY KEY, run_name TEXT, config TEXT)")
        for name in names:
            values = [("t", name, i, json.dumps(row)) for i, row in enumerate(rows)]
            store.executemany("INSERT INTO metrics (timestamp, run_name, step, metrics) VALUES (?, ?, ?, ?)", values)
        settings = json.dumps({"learning_rate": 1e-6, "num_generations": 8})
        store.execute("INSERT INTO configs (run_name, config) VALUES (?, ?)", (names[0], settings))
        store.commit()
    return path


def mlflow_file(path):
    with closing(sqlite3.connect(path)) as store:
        store.executescript(
            "CREATE TABLE runs (run_uuid TEXT, name TEXT, lifecycle_stage TEXT, start_time INT);"
            "CREATE TABLE params (key TEXT, value TEXT, run_uuid TEXT);"
            "CREATE TABLE metrics (key TEXT, value REAL, timestamp INT, run_uuid TEXT, step INT, is_nan INT);"
            "INSERT INTO runs VALUES ('u1', 'first', 'active', 1), ('u2', 'second', 'active', 2);"
            "INSERT INTO runs VALUES ('u3', 'third', 'deleted', 3);"
            "INSERT INTO params VALUES ('gconfig/n_samples', '4', 'u2');"
        )
        rows = [("rollout/reward", 0.5 * i, 0, f"u{u}", i, 0) for i in (1, 2) for u in (1, 2, 3)]
        rows += [("timeperf/train_step", 0.0, 0, "u2", 1, 1)]
        store.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?)", rows)
        store.commit()
    return path


def test_folder_of_mlflow(tmp_path):
    run = mlflow_folder(tmp_path, {"reward/avg_raw_reward": LINES, "policy/policy_entropy": LINES + "17 0."})
    (run / "params" / "generator").mkdir(parents=True)
    (run / "params" / "generator" / "n_samples_per_prompt").write_text("8")
    for path in (tmp_path, tmp_path / "mlruns", run):
        log = read(path)
        assert log.source == "skyrl" and log.config == {"group_size": 8}
        assert log.values("reward").tolist() == [0.25, 0.3125, 0.375, 0.4375]
        assert log.steps("reward").tolist() == [1, 2, 3, 4]
    assert log.notes == ["metrics: 1 lines or rows could not be read"]


def test_mlflow_writes_at_for_an_at_sign(tmp_path):
    mlflow_folder(tmp_path, {"eval/gsm8k/accuracy/mean_at_4": LINES, "rollout/model_version": LINES})
    log = read(tmp_path)
    assert log.source == "trinity" and log.key("eval/accuracy") == "eval/gsm8k/accuracy/mean@4"


def test_an_empty_folder_of_mlflow_is_a_note(tmp_path):
    mlflow_folder(tmp_path, {})
    log = read(tmp_path)
    assert log.read == [] and "mlruns/0/a1/metrics: MLflow's folder holds no metrics" in log.notes


def test_several_runs_of_mlflow_are_told_apart(tmp_path):
    mlflow_folder(tmp_path, {"reward": LINES})
    run = tmp_path / "mlruns" / "0" / "a2" / "metrics"
    run.mkdir(parents=True)
    (run.parent / "meta.yaml").write_text("run_id: a2\n")
    (run / "reward").write_text("1 0.9 1\n1 0.8 2\n")
    with pytest.raises(RecordError, match="holds 2 runs: mlruns/0/a1, mlruns/0/a2: give one"):
        read(tmp_path)


def test_sqlite_of_mlflow(tmp_path):
    path = mlflow_file(tmp_path / "mlflow.db")
    with pytest.raises(RecordError, match=r"mlflow.db holds 2 runs: first, second: choose one, --run second"):
        read(path)
    log = read(path, run="second")
    assert log.source == "areal" and log.config == {"group_size": 4}
    assert log.values("reward").tolist() == [0.5, 1.0]
    assert read(path, run="u1").values("reward").tolist() == [0.5, 1.0]  # its id serves, too
    with pytest.raises(RecordError, match="holds no run 'third': it holds first, second"):
        read(path, run="third")


def test_trackio_counts_by_the_trainers_own_step(tmp_path):
    rows = [{"train/reward": 0.5, "train/rewards/f/mean": 0.5, "train/global_step": 10 * i} for i in (1, 2)]
    path = trackio_file(tmp_path / "project.db", rows)
    before = sorted(p.name for p in tmp_path.iterdir())
    log = read(path)
    assert log.source == "trl" and log.config == {"lr": 1e-6, "group_size": 8}
    assert log.steps("reward").tolist() == [10, 20] and log.read == ["project.db"]
    assert sorted(p.name for p in tmp_path.iterdir()) == before  # nothing is written beside it


def test_several_runs_of_trackio_are_chosen_from(tmp_path):
    path = trackio_file(tmp_path / "project.db", [{"reward": 0.5}], ("one", "two"))
    with pytest.raises(RecordError, match=r"project.db holds 2 runs: one, two: choose one, --run two"):
        read(path)
    assert read(path, run="one").values("reward").tolist() == [0.5]


@pytest.mark.parametrize("size", [20, 100, 5000])
def test_a_torn_store_is_a_note(tmp_path, size):
    content = trackio_file(tmp_path / "whole.db", [{"reward": 0.5, "note": "x" * 200}] * 50).read_bytes()
    (tmp_path / "torn").mkdir()
    path = tmp_path / "torn" / "project.db"
    path.write_bytes(content[:size])
    log = read(path)
    assert diagnose(log).exit_code == 2
    assert log.notes[0].startswith("project.db: can't be read: ")


def test_another_database_is_no_log(tmp_path):
    with closing(sqlite3.connect(tmp_path / "cache.db")) as store:
        store.execute("CREATE TABLE metrics (name TEXT)")
        store.commit()
    assert read(tmp_path).read == []


def test_runs_without_a_common_key_are_one_training(tmp_path):
    path = mlflow_file(tmp_path / "mlflow.db")
    with closing(sqlite3.connect(path)) as store:
        store.execute("UPDATE metrics SET key = 'actor/' || key WHERE run_uuid = 'u2'")
        store.commit()
    table = stores.read_sqlite(path)
    keys = {key for _, row in table.rows for key in row}
    assert keys == {"rollout/reward", "actor/rollout/reward", "actor/timeperf/train_step"}
