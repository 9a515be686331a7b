"""Runs in processes: what one does costs that one alone, and a killed one goes on to the same bits."""

import json
import os
import signal
import threading
import time

import pytest
from tests import started

from gxpo.base import processes
from gxpo.base.process_tree import descendants
from gxpo.compare.jobs import STOPPED, Job, Local
from gxpo.compare.worker import DONE, LOG, run_one

REWARD = "def parity(completion):\n    return float(sum(map(ord, completion)) % 2)\n"


@pytest.fixture
def keys(tmp_path):
    (tmp_path / "reward.py").write_text(REWARD)
    return {
        "model": "tiny:cold",
        "task": "arithmetic",
        "method": "grpo",
        "reward": f"{tmp_path / 'reward.py'}:parity",
        "tasks.per_step": 2,
        "rollout.group_size": 2,
        "sampling.max_new_tokens": 5,
        "eval.tasks": 4,
        "eval.every": 0,
        "doctor.every": 0,
        "trainer.steps": 8,
        "trainer.checkpoint_every": 2,
        "seed": 0,
    }


def lines(path, name="metrics.jsonl"):
    rows = [json.loads(line) for line in (path / name).read_text().splitlines()]
    return [{k: v for k, v in r.items() if not k.startswith(("time_", "memory_"))} for r in rows]


@pytest.mark.slow
def test_a_killed_process_is_replaced_and_its_run_has_equal_bits(tmp_path, keys):
    keys = {**keys, "trainer.steps": 16}
    assert run_one(tmp_path / "whole", keys, keep=True) == ""
    job, runner = Job(tmp_path / "killed", keys), Local(1)
    killed = []

    def kill():
        while not killed:
            line = job.progress()
            if line and line["step"] >= 3:
                guard = next(iter(runner._alive)).process.pid
                killed.append(descendants(guard)[0])
                os.kill(killed[0], signal.SIGKILL)
            time.sleep(0.01)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        with started.forking(processes):
            assert [trouble for _, trouble in runner([job])] == [""]
    finally:
        was_killed = bool(killed)
        killed.append(None)
        thread.join()
        runner.close()
    assert was_killed
    assert lines(tmp_path / "killed") == lines(tmp_path / "whole")
    assert lines(tmp_path / "killed", "evaluations.jsonl") == lines(tmp_path / "whole", "evaluations.jsonl")


@pytest.mark.slow
def test_failed_run_costs_itself_alone_and_is_not_retried(tmp_path, keys):
    """In a process that has said what a run costs."""
    bad = Job(tmp_path / "bad", {**keys, "optim.lr": -1.0})
    good = Job(tmp_path / "good", keys, keep=False)
    runner = Local(1)
    try:
        with started.forking(processes):
            (cost,) = runner.probe([keys])
            actual = {job.path.name: trouble for job, trouble in runner([bad, good])}
            again = {job.path.name: trouble for job, trouble in runner([bad, good])}
    finally:
        runner.close()
    assert "optim.lr" in actual["bad"] and "greater than 0" in actual["bad"]
    assert actual["good"] == "" and cost["steps"] == 8 and cost["time_run_s"] > 0
    assert again == actual
    assert "optim.lr" in (bad.path / LOG).read_text()
    assert sorted(p.name for p in good.path.iterdir() if p.is_dir()) == ["evaluations"]  # kept: figures alone


def test_jobs_that_are_done_are_not_made_again(tmp_path, keys):
    path = tmp_path / "run"
    path.mkdir()
    (path / DONE).write_text('{"trouble": ""}')
    runner = Local(1)
    assert [(job.path, trouble) for job, trouble in runner([Job(path, keys)])] == [(path, "")]
    assert not runner._alive


def test_a_closed_runner_leaves_runs_unfinished(tmp_path, keys):
    runner = Local(1)
    runner.close()
    assert [trouble for _, trouble in runner([Job(tmp_path / "run", keys)])] == [STOPPED]
    assert not (tmp_path / "run" / DONE).exists()


def test_progress_is_the_newest_whole_line(tmp_path, keys):
    job = Job(tmp_path, keys)
    assert job.progress() == {}
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n{"st')
    assert job.progress() == {"step": 2}
